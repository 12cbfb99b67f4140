//! What kernels that are compiled once per packing and group share. There a packing is a number: the bits of a code, or 0 for
//! [`Packing::Fp4`](super::Packing::Fp4).

/// Calls a function with packing and group as constants, and perhaps one more.
macro_rules! by_form {
    ($packing:expr, $group:expr, $function:ident($($arg:expr),*) $(, $more:literal)?) => {
        match $packing {
            $crate::kernels::Packing::Fp4 => by_form!(0, $group, $function($($arg),*) $(, $more)?; constant),
            $crate::kernels::Packing::Bits(1) => by_form!(1, $group, $function($($arg),*) $(, $more)?; constant),
            $crate::kernels::Packing::Bits(2) => by_form!(2, $group, $function($($arg),*) $(, $more)?; constant),
            $crate::kernels::Packing::Bits(3) => by_form!(3, $group, $function($($arg),*) $(, $more)?; constant),
            $crate::kernels::Packing::Bits(4) => by_form!(4, $group, $function($($arg),*) $(, $more)?; constant),
            $crate::kernels::Packing::Bits(5) => by_form!(5, $group, $function($($arg),*) $(, $more)?; constant),
            $crate::kernels::Packing::Bits(6) => by_form!(6, $group, $function($($arg),*) $(, $more)?; constant),
            $crate::kernels::Packing::Bits(_) => by_form!(8, $group, $function($($arg),*) $(, $more)?; constant),
        }
    };
    ($packing:literal, $group:expr, $function:ident($($arg:expr),*) $(, $more:literal)?; constant) => {
        match $group {
            32 => $function::<$packing, 32 $(, $more)?>($($arg),*),
            64 => $function::<$packing, 64 $(, $more)?>($($arg),*),
            _ => $function::<$packing, 128 $(, $more)?>($($arg),*),
        }
    };
}
pub(super) use by_form;

/// Whether codes are read as a stream: those that may lie across two bytes, and single bits. They are
/// read 32 at a time, through two windows of [`window_bytes`]: one begins where they begin and one ends
/// where they end, so that nothing beyond is read.
pub(super) const fn is_stream(packing: usize) -> bool {
    matches!(packing, 1 | 3 | 5 | 6)
}

/// Bytes of a window on a stream, the least power of two that holds 16 codes.
pub(super) const fn window_bytes(bits: usize) -> usize {
    (2 * bits).next_power_of_two()
}

/// Where in the 32 codes' bytes a window begins, and where in the window its 16 codes do.
pub(super) const fn window(bits: usize, second: bool) -> (usize, usize) {
    let from = if second { 4 * bits - window_bytes(bits) } else { 0 };
    (from, if second { 2 * bits - from } else { 0 })
}
