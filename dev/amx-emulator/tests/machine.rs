//! Instructions as the assembler puts them into this program: on a CPU with AMX they run there, and
//! must give what the software tiles give.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]
#![allow(clippy::unwrap_used, reason = "a test: a panic is a failure")]

use std::arch::asm;

use fucina_amx_emulator::{Dot, Guarded, Tiles, install, is_configured};

#[repr(C, align(64))]
struct Config([u8; 64]);

/// All tiles with 16 rows of 64 bytes, but 4 and 5, the left factors, with rows of `a_bytes`, and 6
/// and 7, the right ones, with the rows that fit.
fn config(a_bytes: u8) -> Config {
    let mut config = [0; 64];
    config[0] = 1;
    for tile in 0..8 {
        config[16 + 2 * tile] = if matches!(tile, 4 | 5) { a_bytes } else { 64 };
        config[48 + tile] = if tile >= 6 { a_bytes / 4 } else { 16 };
    }
    Config(config)
}

/// `c += a * b` by the instruction, on this CPU or in software.
macro_rules! product {
    ($name:literal, $config:expr, $c:expr, $a:expr, $b:expr) => {{
        let (config, c, a, b): (&Config, &mut [u32], &[u8], &[u8]) = ($config, $c, $a, $b);
        // SAFETY: the configuration is 64 bytes; 16 rows of 64 bytes of `c`, the rows of `a` and
        // the rows of `b` lie in their slices, as the test allocates them.
        unsafe {
            asm!(
                "ldtilecfg [{config}]",
                "tileloadd tmm0, [{c} + {wide}*1]",
                "tileloadd tmm4, [{a} + {narrow}*1]",
                "tileloaddt1 tmm6, [{b} + {wide}*1]",
                concat!($name, " tmm0, tmm4, tmm6"),
                "tilestored [{c} + {wide}*1], tmm0",
                "tilerelease",
                config = in(reg) config, c = in(reg) c.as_mut_ptr(),
                a = in(reg) a.as_ptr(), b = in(reg) b.as_ptr(),
                wide = in(reg) 64usize, narrow = in(reg) a.len() / 16,
                out("tmm0") _, out("tmm4") _, out("tmm6") _,
                options(nostack),
            );
        }
    }};
}

/// The same by the software tiles alone.
fn in_software(kind: Dot, config: &Config, c: &mut [u32], a: &[u8], b: &[u8]) {
    let mut tiles = Tiles::documented();
    tiles.load_config(&config.0).unwrap();
    let width = a.len() / 16;
    let words = |row: usize| 16 * row..16 * row + 16;
    let load_c = |row: usize, bytes: &mut [u8]| {
        let (chunks, _) = bytes.as_chunks_mut::<4>();
        chunks.iter_mut().zip(&c[words(row)]).for_each(|(to, word)| *to = word.to_le_bytes());
    };
    tiles.load(0, load_c).unwrap();
    tiles.load(4, |row, bytes| bytes.copy_from_slice(&a[row * width..][..width])).unwrap();
    tiles.load(6, |row, bytes| bytes.copy_from_slice(&b[row * 64..][..64])).unwrap();
    tiles.dot(kind, 0, 4, 6).unwrap();
    let store_c = |row: usize, bytes: &[u8]| {
        let (chunks, _) = bytes.as_chunks::<4>();
        c[words(row)].iter_mut().zip(chunks).for_each(|(to, word)| *to = u32::from_le_bytes(*word));
    };
    tiles.store(0, store_c).unwrap();
}

fn bytes(len: usize, seed: &mut u32) -> Vec<u8> {
    let mut next = || {
        *seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        seed.to_be_bytes()[0]
    };
    (0..len).map(|_| next()).collect()
}

/// Asks the system for the tiles of the CPU, if it has some. Without the permission their
/// instructions raise the signal, and run in software.
fn ask_for_hardware() {
    const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
    const TILE_DATA: libc::c_ulong = 18;
    // SAFETY: the call takes two numbers; it changes what this process may use, nothing else.
    unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, TILE_DATA) };
}

/// Random bytes are, as bf16, of every exponent, subnormals, infinities and NaN included.
#[test]
fn the_machine_and_the_software_tiles_agree() {
    install();
    ask_for_hardware();
    let mut seed = 1;
    for round in 0..200 {
        let a_bytes = [64, 32, 16, 4][round % 4];
        let config = config(a_bytes);
        let a = Guarded::new(&bytes(16 * usize::from(a_bytes), &mut seed));
        let b = Guarded::new(&bytes(16 * usize::from(a_bytes), &mut seed));
        let start: Vec<u32> = bytes(1024, &mut seed)
            .as_chunks::<4>()
            .0
            .iter()
            .map(|&word| u32::from_le_bytes(word))
            .collect();
        let kinds = [
            Dot::Bf16,
            Dot::I8 { a_signed: true, b_signed: true },
            Dot::I8 { a_signed: true, b_signed: false },
            Dot::I8 { a_signed: false, b_signed: true },
            Dot::I8 { a_signed: false, b_signed: false },
        ];
        for kind in kinds {
            let mut got = Guarded::new(&start);
            match kind {
                Dot::Bf16 => product!("tdpbf16ps", &config, &mut got, &a, &b),
                Dot::I8 { a_signed: true, b_signed: true } => {
                    product!("tdpbssd", &config, &mut got, &a, &b);
                }
                Dot::I8 { a_signed: true, b_signed: false } => {
                    product!("tdpbsud", &config, &mut got, &a, &b);
                }
                Dot::I8 { a_signed: false, b_signed: true } => {
                    product!("tdpbusd", &config, &mut got, &a, &b);
                }
                Dot::I8 { a_signed: false, b_signed: false } => {
                    product!("tdpbuud", &config, &mut got, &a, &b);
                }
            }
            let mut want = start.clone();
            in_software(kind, &config, &mut want, &a, &b);
            // Which NaN comes out is not compared.
            let plain = |word: &u32| match kind {
                Dot::Bf16 if f32::from_bits(*word).is_nan() => f32::NAN.to_bits(),
                _ => *word,
            };
            let got: Vec<u32> = got.iter().map(plain).collect();
            let want: Vec<u32> = want.iter().map(plain).collect();
            assert_eq!(got, want, "{kind:?}, round {round}");
        }
    }
    assert!(!is_configured(), "released");
}

/// Runs `name`, an ignored test that must die, in a process of its own. Returns what it said.
fn death_of(name: &str) -> String {
    use std::os::unix::process::ExitStatusExt;
    let output = std::process::Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--ignored", "--nocapture"])
        .output()
        .unwrap();
    assert!(output.status.signal().is_some(), "{name} ended with {:?}", output.status);
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
#[ignore = "dies; another test starts it"]
fn use_without_a_configuration() {
    install();
    // SAFETY: touches tiles only. Without a configuration it is refused.
    unsafe { asm!("tilezero tmm3", out("tmm3") _, options(nostack)) };
}

#[test]
#[ignore = "dies; another test starts it"]
fn use_on_a_thread_that_did_not_configure() {
    install();
    let config = config(64);
    // SAFETY: the configuration is 64 bytes.
    unsafe { asm!("ldtilecfg [{config}]", config = in(reg) &config, options(nostack)) };
    let other = std::thread::spawn(|| {
        // SAFETY: touches tiles only. This thread has no configuration.
        unsafe { asm!("tilezero tmm3", out("tmm3") _, options(nostack)) };
    });
    other.join().unwrap();
}

#[test]
#[ignore = "dies; another test starts it"]
fn an_instruction_of_another_kind() {
    install();
    // SAFETY: raises the signal and nothing else.
    unsafe { asm!("ud2", options(nostack)) };
}

#[test]
#[ignore = "dies; another test starts it"]
fn a_read_behind_the_end() {
    install();
    let (config, memory) = (config(64), Guarded::new(&[0u8; 1023]));
    // SAFETY: not sound, on purpose: the last row has a byte too few, and the process must die.
    unsafe {
        asm!(
            "ldtilecfg [{config}]", "tileloadd tmm1, [{memory} + {stride}*1]", "tilerelease",
            config = in(reg) &config, memory = in(reg) memory.as_ptr(), stride = in(reg) 64usize,
            out("tmm1") _, options(nostack),
        );
    }
}

#[test]
fn what_a_cpu_refuses_ends_the_process() {
    let hardware = std::fs::read_to_string("/proc/cpuinfo").unwrap().contains("amx_tile");
    for (name, message) in [
        ("use_without_a_configuration", "no tile configuration"),
        ("use_on_a_thread_that_did_not_configure", "no tile configuration"),
        ("an_instruction_of_another_kind", "none of AMX"),
        ("a_read_behind_the_end", ""),
    ] {
        let said = death_of(name);
        assert!(hardware || said.contains(message), "{name}: {said}");
    }
}
