//! Status codes of the driver that the simulator returns, with their names.

use std::ffi::{CStr, c_int};

/// What every entry point returns.
pub(crate) type Status = c_int;

macro_rules! statuses {
    ($($name:ident = $code:literal $text:literal;)*) => {
        $(pub(crate) const $name: Status = $code;)*

        /// The name of a code.
        pub(crate) fn name(code: Status) -> Option<&'static CStr> {
            match code {
                $($code => Some($text),)*
                _ => None,
            }
        }
    };
}

statuses! {
    SUCCESS = 0 c"CUDA_SUCCESS";
    INVALID_VALUE = 1 c"CUDA_ERROR_INVALID_VALUE";
    OUT_OF_MEMORY = 2 c"CUDA_ERROR_OUT_OF_MEMORY";
    NO_DEVICE = 100 c"CUDA_ERROR_NO_DEVICE";
    INVALID_DEVICE = 101 c"CUDA_ERROR_INVALID_DEVICE";
    INVALID_CONTEXT = 201 c"CUDA_ERROR_INVALID_CONTEXT";
    INVALID_PTX = 218 c"CUDA_ERROR_INVALID_PTX";
    INVALID_HANDLE = 400 c"CUDA_ERROR_INVALID_HANDLE";
    NOT_FOUND = 500 c"CUDA_ERROR_NOT_FOUND";
    NOT_READY = 600 c"CUDA_ERROR_NOT_READY";
    ILLEGAL_ADDRESS = 700 c"CUDA_ERROR_ILLEGAL_ADDRESS";
    LAUNCH_TIMEOUT = 702 c"CUDA_ERROR_LAUNCH_TIMEOUT";
    HOST_MEMORY_ALREADY_REGISTERED = 712 c"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED";
    HOST_MEMORY_NOT_REGISTERED = 713 c"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED";
    LAUNCH_FAILED = 719 c"CUDA_ERROR_LAUNCH_FAILED";
    UNKNOWN = 999 c"CUDA_ERROR_UNKNOWN";
}
