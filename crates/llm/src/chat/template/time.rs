//! The calendar, for `strftime_now`. UTC, in English.

use std::time::{SystemTime, UNIX_EPOCH};

const DAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];

/// Seconds since 1970; of the present if `time` is `None`. A time beyond the year 9999 is its end,
/// one before 1970 is 1970.
pub(super) fn seconds(time: Option<SystemTime>) -> i64 {
    const END_OF_9999: i64 = 253_402_300_799;
    let time = time.unwrap_or_else(SystemTime::now);
    let since = time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    i64::try_from(since).unwrap_or(i64::MAX).min(END_OF_9999)
}

/// A moment, taken apart.
struct Moment {
    year: i64,
    /// From 1.
    month: usize,
    /// From 1.
    day: i64,
    /// From 0, in the year.
    year_day: i64,
    /// From 0, Sunday.
    week_day: usize,
    hour: i64,
    minute: i64,
    second: i64,
}

const fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

impl Moment {
    fn new(seconds: i64) -> Self {
        let mut day = seconds.div_euclid(86_400);
        let second = seconds.rem_euclid(86_400);
        // The first of January 1970 was a Thursday.
        let week_day = usize::try_from((day + 4).rem_euclid(7)).unwrap_or(0);
        let mut year = 1970;
        loop {
            let length = if is_leap(year) { 366 } else { 365 };
            if day < length {
                break;
            }
            day -= length;
            year += 1;
        }
        let year_day = day;
        let mut month = 1;
        for length in [31, if is_leap(year) { 29 } else { 28 }, 31, 30, 31, 30, 31, 31, 30, 31, 30]
        {
            if day < length {
                break;
            }
            day -= length;
            month += 1;
        }
        Self {
            year,
            month,
            day: day + 1,
            year_day,
            week_day,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }

    /// Writes what `%directive` stands for; `false` if it is none.
    fn write(&self, directive: char, out: &mut String) -> bool {
        let hour_of_12 = (self.hour + 11) % 12 + 1;
        let text = match directive {
            'a' => DAYS[self.week_day][..3].to_owned(),
            'A' => DAYS[self.week_day].to_owned(),
            'b' | 'h' => MONTHS[self.month - 1][..3].to_owned(),
            'B' => MONTHS[self.month - 1].to_owned(),
            'd' => format!("{:02}", self.day),
            'e' => format!("{:2}", self.day),
            'F' => format!("{:04}-{:02}-{:02}", self.year, self.month, self.day),
            'H' => format!("{:02}", self.hour),
            'I' => format!("{hour_of_12:02}"),
            'j' => format!("{:03}", self.year_day + 1),
            'm' => format!("{:02}", self.month),
            'M' => format!("{:02}", self.minute),
            'p' => if self.hour < 12 { "AM" } else { "PM" }.to_owned(),
            'S' => format!("{:02}", self.second),
            'T' => format!("{:02}:{:02}:{:02}", self.hour, self.minute, self.second),
            'w' => self.week_day.to_string(),
            'y' => format!("{:02}", self.year % 100),
            'Y' => format!("{:04}", self.year),
            'z' => "+0000".to_owned(),
            'Z' => "UTC".to_owned(),
            '%' => "%".to_owned(),
            'n' => "\n".to_owned(),
            't' => "\t".to_owned(),
            _ => return false,
        };
        out.push_str(&text);
        true
    }
}

/// The time in a form like `%d %b %Y`. What is no directive stays as it is. `%-d` and the like
/// leave out leading zeros.
pub(super) fn format(seconds: i64, form: &str) -> String {
    let moment = Moment::new(seconds);
    let mut out = String::new();
    let mut chars = form.chars();
    while let Some(c) = chars.next() {
        if c != '%' {
            out.push(c);
            continue;
        }
        let rest = chars.clone();
        let mut directive = chars.next();
        let bare = directive == Some('-');
        if bare {
            directive = chars.next();
        }
        let mut text = String::new();
        if directive.is_some_and(|directive| moment.write(directive, &mut text)) {
            let text = if bare { text.trim_start_matches(['0', ' ']) } else { &text };
            out.push_str(if text.is_empty() { "0" } else { text });
        } else {
            out.push('%');
            chars = rest;
        }
    }
    out
}
