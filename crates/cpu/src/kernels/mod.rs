//! Integer products with quantised weights, one file per instruction set.

#[cfg(target_arch = "x86_64")]
pub(crate) mod avx2;
#[cfg(target_arch = "x86_64")]
pub(crate) mod avx512;
mod codes;
mod decode;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod forms;
#[cfg(target_arch = "aarch64")]
mod neon;
mod rounded;
mod scalar;
#[cfg(test)]
mod tests;

pub(crate) use codes::{Codes, Packing};
pub(crate) use decode::decode_row;
pub(crate) use rounded::{Form, Rounded};

/// The instructions that kernels may use. One that exists as a value can be run by this machine: they come from
/// [`Set::best`], [`Set::available`] and [`Set::named`] alone.
// Variants that need a check cannot be made outside this crate, which makes them nowhere else.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Set {
    /// AVX-512 with integer dot products (VNNI) and byte permutes (VBMI).
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx512,
    /// AVX2 with fused multiply-add.
    #[cfg(target_arch = "x86_64")]
    #[non_exhaustive]
    Avx2,
    /// NEON, part of every 64-bit ARM.
    #[cfg(target_arch = "aarch64")]
    Neon,
    /// Plain loops.
    Scalar,
}

impl Set {
    /// All that this machine can run, the fastest first.
    pub fn available() -> Vec<Set> {
        let mut sets = Vec::new();
        #[cfg(target_arch = "x86_64")]
        {
            use std::arch::is_x86_feature_detected as has;
            let avx2 = has!("avx2") && has!("fma") && has!("f16c");
            let avx512 = has!("avx512f") && has!("avx512bw") && has!("avx512dq") && has!("avx512vl");
            if avx2 && avx512 && has!("avx512vnni") && has!("avx512vbmi") {
                sets.push(Set::Avx512);
            }
            if avx2 {
                sets.push(Set::Avx2);
            }
        }
        #[cfg(target_arch = "aarch64")]
        sets.push(Set::Neon);
        sets.push(Set::Scalar);
        sets
    }

    /// The fastest that this machine can run.
    pub fn best() -> Set {
        Self::available()[0]
    }

    /// The set of a name, if this machine can run it.
    pub fn named(name: &str) -> Option<Set> {
        Self::available().into_iter().find(|set| set.name() == name)
    }

    /// Its name, as flags and reports have it.
    pub fn name(self) -> &'static str {
        match self {
            #[cfg(target_arch = "x86_64")]
            Set::Avx512 => "avx512",
            #[cfg(target_arch = "x86_64")]
            Set::Avx2 => "avx2",
            #[cfg(target_arch = "aarch64")]
            Set::Neon => "neon",
            Set::Scalar => "scalar",
        }
    }
}

/// Rows of a [`Panel`].
pub(crate) const PANEL: usize = 32;

/// `y[i] = W[first + i] x[t]`. `next` are the codes that this thread will probably read afterwards: a stream of memory that breaks
/// off costs as much as some ten thousand bytes.
pub(crate) fn rows(set: Set, w: &Codes<'_>, first: usize, x: &Rounded, t: usize, y: &mut [f32], next: &[u8]) {
    match set {
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => avx512::rows(w, first, x, t, y, next),
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => avx2::rows(w, first, x, t, y, next),
        #[cfg(target_arch = "aarch64")]
        Set::Neon => neon::rows(w, first, x, t, y, next),
        Set::Scalar => scalar::rows(w, first, x, t, y),
    }
}

/// Whether a set has integer products for many tokens. Where it has not, unpacking to floats is as fast.
pub(crate) fn has_panels(set: Set) -> bool {
    match set {
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 | Set::Avx2 => true,
        _ => false,
    }
}

/// Rows of a matrix, unpacked for many tokens; kept for its memory.
#[derive(Default)]
pub(crate) struct Panel {
    #[cfg(target_arch = "x86_64")]
    avx512: avx512::Panel,
    #[cfg(target_arch = "x86_64")]
    avx2: avx2::Panel,
}

/// `out[i][r] = W[first + r] x[tokens[i]]` for up to [`PANEL`] rows; for sets that have panels. Results of rows beyond the
/// last are of no use.
#[cfg_attr(not(target_arch = "x86_64"), expect(unused_variables, reason = "no set has panels there"))]
pub(crate) fn panel(
    set: Set,
    w: &Codes<'_>,
    first: usize,
    panel: &mut Panel,
    x: &Rounded,
    tokens: &[u32],
    out: &mut [[f32; PANEL]],
) {
    match set {
        #[cfg(target_arch = "x86_64")]
        Set::Avx512 => {
            panel.avx512.fill(w, first);
            avx512::panel(w, &panel.avx512, x, tokens, out);
        }
        #[cfg(target_arch = "x86_64")]
        Set::Avx2 => {
            panel.avx2.fill(w, first);
            avx2::panel(w, &panel.avx2, x, tokens, out);
        }
        _ => unreachable!("{set:?} has no panels"),
    }
}
