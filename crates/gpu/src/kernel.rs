//! Typed kernels: what Rust declares of each WGSL file, and calls of it.
//!
//! [`kernel!`] declares a kernel's parameters, bindings and constants by name. A test reflects the
//! WGSL with naga and compares names, offsets, types and access, so that neither side can drift
//! from the other.

use std::collections::HashSet;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::sync::OnceLock;

use ::backend::{Activation, CacheFloat};
use bytemuck::Pod;
use checkpoint::Format;

use crate::pool::Buffer;
use crate::recorder::MOST_PARAMS;
use crate::shader::Piece;

/// Bindings of a kernel at most: what wgpu's default limits allow.
pub(crate) const MOST_BINDINGS: usize = 8;

/// Constants of a kernel at most.
const MOST_CONSTANTS: usize = 9;

/// A kernel's declaration.
pub(crate) struct Kernel {
    pub name: &'static str,
    /// Its own WGSL, and the pieces that come before it.
    pub text: &'static str,
    pub pieces: &'static [Piece],
    /// Members of its parameter struct.
    #[cfg_attr(not(test), expect(dead_code, reason = "compared with the WGSL in tests"))]
    pub fields: &'static [Field],
    /// Bindings of group 0; each one's number is its place here.
    pub bindings: &'static [Binding],
    /// Constants that differ between variants.
    pub constants: &'static [(&'static str, Kind)],
    /// Constants that are the same in all.
    pub fixed: &'static [(&'static str, u32)],
    /// Values that its choosers can return for the constants.
    pub reachable: fn() -> Vec<Values>,
    /// The same, once somebody has asked.
    pub reached: OnceLock<HashSet<Values>>,
}

impl Kernel {
    /// Whether it can wait for the one in front by itself.
    pub fn chains(&self) -> bool {
        self.pieces.contains(&Piece::Chain)
    }

    /// Values that its constants can have at run time, each once.
    pub fn reached(&self) -> &HashSet<Values> {
        self.reached.get_or_init(|| (self.reachable)().into_iter().collect())
    }
}

/// A member of a parameter struct, or of several in a row.
#[cfg_attr(not(test), allow(dead_code, reason = "compared with the WGSL in tests"))]
pub(crate) struct Field {
    pub name: &'static str,
    pub offset: usize,
    /// Members that it stands for; a nameless one has the field's name.
    pub parts: &'static [(&'static str, Scalar)],
}

/// Types of parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scalar {
    Uint,
    Float,
}

/// What can be a member of a parameter struct.
pub(crate) trait Param: Pod {
    const PARTS: &'static [(&'static str, Scalar)];
}

impl Param for u32 {
    const PARTS: &'static [(&'static str, Scalar)] = &[("", Scalar::Uint)];
}

impl Param for f32 {
    const PARTS: &'static [(&'static str, Scalar)] = &[("", Scalar::Float)];
}

/// The parameters with which every kernel over weights begins.
#[repr(C)]
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
pub(crate) struct WeightParams {
    /// Words of a row of codes, and of a row of scales.
    pub row_words: u32,
    pub row_scales: u32,
    pub cols: u32,
    /// Eights of a row, the last filled up.
    pub eights: u32,
}

impl Param for WeightParams {
    const PARTS: &'static [(&'static str, Scalar)] = &[
        ("row_words", Scalar::Uint),
        ("row_scales", Scalar::Uint),
        ("cols", Scalar::Uint),
        ("eights", Scalar::Uint),
    ];
}

/// A storage buffer that a kernel takes.
pub(crate) struct Binding {
    #[cfg_attr(not(test), expect(dead_code, reason = "compared with the WGSL in tests"))]
    pub name: &'static str,
    pub access: Access,
}

/// What a kernel does with a buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    /// Written, and maybe read.
    Write,
}

/// What becomes of a constant's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A `const` of this name in capitals.
    Number,
    /// A choice of pieces.
    Pieces,
    /// A weight's format, a choice of pieces with constants of their own.
    Format,
}

/// What can be a constant of a kernel.
pub(crate) trait Constant: Copy {
    const KIND: Kind = Kind::Number;

    fn number(self) -> u32;

    fn format(self) -> Option<Format> {
        None
    }
}

impl Constant for u32 {
    fn number(self) -> u32 {
        self
    }
}

impl Constant for bool {
    fn number(self) -> u32 {
        self.into()
    }
}

impl Constant for Activation {
    fn number(self) -> u32 {
        match self {
            Activation::Silu => 0,
            Activation::GeluTanh => 1,
        }
    }
}

impl Constant for CacheFloat {
    const KIND: Kind = Kind::Pieces;

    fn number(self) -> u32 {
        match self {
            CacheFloat::F32 => 0,
            CacheFloat::F16 => 1,
            CacheFloat::Q8 => 2,
        }
    }
}

impl Constant for Format {
    const KIND: Kind = Kind::Format;

    fn number(self) -> u32 {
        0
    }

    fn format(self) -> Option<Format> {
        Some(self)
    }
}

/// How rows of inputs lie in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputRows {
    /// f32 in whole eights.
    Aligned,
    /// f32, rows ending within an eight.
    Ragged,
    /// f16 for matrix units.
    Halves,
}

impl Constant for InputRows {
    const KIND: Kind = Kind::Pieces;

    fn number(self) -> u32 {
        match self {
            InputRows::Aligned => 0,
            InputRows::Ragged => 1,
            InputRows::Halves => 2,
        }
    }
}

/// Values of a kernel's constants, in their order.
pub(crate) type Values = [u32; MOST_CONSTANTS];

/// A kernel with its constants: what is compiled.
#[derive(Clone, Copy)]
pub(crate) struct Variant {
    pub kernel: &'static Kernel,
    /// Format of its weight, if it has one.
    pub format: Option<Format>,
    pub values: Values,
}

impl Variant {
    /// A variant of a kernel without constants.
    pub fn of(kernel: &'static Kernel) -> Self {
        Self { kernel, format: None, values: [0; MOST_CONSTANTS] }
    }

    /// Names and values of its constants.
    pub fn constants(&self) -> impl Iterator<Item = (&'static str, Kind, u32)> {
        let chosen = self.kernel.constants.iter().zip(self.values);
        let kind = |name| if name == "matrices" { Kind::Pieces } else { Kind::Number };
        let fixed = self.kernel.fixed.iter().map(move |(name, value)| (*name, kind(*name), *value));
        chosen.map(|((name, kind), value)| (*name, *kind, value)).chain(fixed)
    }

    /// The value of a constant, if it has it.
    pub fn constant(&self, name: &str) -> Option<u32> {
        self.constants().find(|(own, ..)| *own == name).map(|(.., value)| value)
    }

    /// Whether it needs the matrix units of some GPUs.
    pub fn matrices(&self) -> bool {
        self.constant("matrices") == Some(1) || self.constant("input") == Some(InputRows::Halves.number())
    }

    /// Whether its kernel's choosers are known to return it, so that tests have compiled it.
    pub fn is_reachable(&self) -> bool {
        self.kernel.reached().contains(&self.values)
    }
}

impl fmt::Display for Variant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?}", self.kernel.name, self.format)?;
        self.constants().try_for_each(|(name, _, value)| write!(f, " {name} {value}"))
    }
}

impl PartialEq for Variant {
    fn eq(&self, other: &Self) -> bool {
        std::ptr::eq(self.kernel, other.kernel) && (self.format, self.values) == (other.format, other.values)
    }
}

impl Eq for Variant {}

impl Hash for Variant {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (std::ptr::from_ref(self.kernel), self.format, self.values).hash(state);
    }
}

/// A kernel's arguments, on the stack.
pub(crate) struct Call<'a> {
    pub variant: Variant,
    params: [u8; 4 * MOST_PARAMS],
    params_len: usize,
    buffers: [&'a Buffer; MOST_BINDINGS],
    buffers_len: usize,
}

impl<'a> Call<'a> {
    pub fn new<const N: usize>(variant: Variant, own: &impl Pod, buffers: [&'a Buffer; N]) -> Self {
        let own = bytemuck::bytes_of(own);
        let mut params = [0; 4 * MOST_PARAMS];
        params[..own.len()].copy_from_slice(own);
        let mut all = [buffers[0]; MOST_BINDINGS];
        all[..N].copy_from_slice(&buffers);
        Self { variant, params, params_len: own.len(), buffers: all, buffers_len: N }
    }

    pub fn params(&self) -> &[u8] {
        &self.params[..self.params_len]
    }

    /// In the order of the kernel's bindings.
    pub fn buffers(&self) -> &[&'a Buffer] {
        &self.buffers[..self.buffers_len]
    }
}

/// Declares a struct of parameters: `u32`, `f32` and [`WeightParams`].
macro_rules! params {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[repr(C)]
        #[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
        pub(crate) struct $name {
            $(pub $field: $type),*
        }

        impl $name {
            #[cfg_attr(not(test), allow(dead_code, reason = "compared with the WGSL in tests"))]
            pub const FIELDS: &'static [$crate::kernel::Field] = &[$($crate::kernel::Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
                parts: <$type as $crate::kernel::Param>::PARTS,
            }),*];
        }
    };
}

/// Declares a struct of constants.
macro_rules! consts {
    ($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy)]
        pub(crate) struct $name {
            $(pub $field: $type),*
        }

        impl $name {
            pub const NAMES: &'static [(&'static str, $crate::kernel::Kind)] =
                &[$((stringify!($field), <$type as $crate::kernel::Constant>::KIND)),*];

            pub fn variant(&self, kernel: &'static $crate::kernel::Kernel) -> $crate::kernel::Variant {
                let mut variant = $crate::kernel::Variant::of(kernel);
                let own = [$($crate::kernel::Constant::number(self.$field)),*];
                variant.values[..own.len()].copy_from_slice(&own);
                variant.format = None$(.or($crate::kernel::Constant::format(self.$field)))*;
                variant
            }
        }
    };
}

/// Declares a kernel as a module with `Params`, `Bindings`, `Consts` and `call`.
///
/// A binding is `read` or `write`; one that is `read or other` is optional, and `other` stands in
/// for it where it is absent: the kernel looks at it only if a parameter says that it is there.
/// `consts` come with a function that lists what choosers can return.
macro_rules! kernel {
    (@params { $($fields:tt)* }) => {
        $crate::kernel::params!(Params { $($fields)* });
    };
    (@params $shared:ident) => {
        pub(crate) use super::$shared as Params;
    };
    (@consts { $($fields:tt)* }) => {
        $crate::kernel::consts!(Consts { $($fields)* });
    };
    (@consts $shared:ident) => {
        pub(crate) use super::$shared as Consts;
    };
    (@access read) => { $crate::kernel::Access::Read };
    (@access write) => { $crate::kernel::Access::Write };
    (@type $life:lifetime) => { &$life $crate::pool::Buffer };
    (@type $life:lifetime $other:ident) => { Option<&$life $crate::pool::Buffer> };
    (@buffer $bindings:ident $name:ident) => { $bindings.$name };
    (@buffer $bindings:ident $name:ident $other:ident) => { $bindings.$name.unwrap_or($bindings.$other) };
    (@declare $name:literal [$($piece:ident),*] $params:tt { $($binding:ident: $access:ident $(or $other:ident)?),* }
        [$($fixed:ident = $value:literal),*] $constants:expr, $reachable:expr) => {
        $crate::kernel::kernel!(@params $params);

        pub(crate) struct Bindings<'a> {
            $(pub $binding: $crate::kernel::kernel!(@type 'a $($other)?)),*
        }

        pub(crate) static KERNEL: $crate::kernel::Kernel = $crate::kernel::Kernel {
            name: $name,
            text: include_str!(concat!("../shaders/", $name, ".wgsl")),
            pieces: &[$($crate::shader::Piece::$piece),*],
            fields: Params::FIELDS,
            bindings: &[$($crate::kernel::Binding {
                name: stringify!($binding),
                access: $crate::kernel::kernel!(@access $access),
            }),*],
            constants: $constants,
            fixed: &[$((stringify!($fixed), $value)),*],
            reachable: $reachable,
            reached: std::sync::OnceLock::new(),
        };
    };
    ($(#[$doc:meta])* $id:ident = $name:literal [$($piece:ident),* $(,)?]
        params $params:tt
        bindings { $($binding:ident: $access:ident $(or $other:ident)?),* $(,)? }
        fixed { $($fixed:ident = $value:literal),* $(,)? }
        consts $consts:tt in $reachable:path;
    ) => {
        $(#[$doc])*
        pub(crate) mod $id {
            #[allow(unused_imports, reason = "types of constants")]
            use super::*;

            $crate::kernel::kernel!(@consts $consts);
            $crate::kernel::kernel!(@declare $name [$($piece),*] $params
                { $($binding: $access $(or $other)?),* } [$($fixed = $value),*] Consts::NAMES,
                || $reachable().iter().map(|consts: &Consts| consts.variant(&KERNEL).values).collect());

            pub(crate) fn call<'a>(
                consts: Consts,
                params: Params,
                bindings: Bindings<'a>,
            ) -> $crate::kernel::Call<'a> {
                let buffers = [$($crate::kernel::kernel!(@buffer bindings $binding $($other)?)),*];
                $crate::kernel::Call::new(consts.variant(&KERNEL), &params, buffers)
            }
        }
    };
    ($(#[$doc:meta])* $id:ident = $name:literal [$($piece:ident),* $(,)?]
        params $params:tt
        bindings { $($binding:ident: $access:ident $(or $other:ident)?),* $(,)? }
        fixed { $($fixed:ident = $value:literal),* $(,)? }
    ) => {
        $(#[$doc])*
        pub(crate) mod $id {
            #[allow(unused_imports, reason = "types of parameters")]
            use super::*;

            $crate::kernel::kernel!(@declare $name [$($piece),*] $params
                { $($binding: $access $(or $other)?),* } [$($fixed = $value),*] &[],
                || vec![$crate::kernel::Variant::of(&KERNEL).values]);

            pub(crate) fn call<'a>(params: Params, bindings: Bindings<'a>) -> $crate::kernel::Call<'a> {
                let buffers = [$($crate::kernel::kernel!(@buffer bindings $binding $($other)?)),*];
                $crate::kernel::Call::new($crate::kernel::Variant::of(&KERNEL), &params, buffers)
            }
        }
    };
}

pub(crate) use {consts, kernel, params};
