//! Compiles every variant that can be reached at run time, as text for Vulkan and Metal, and
//! compares it with its declaration.

use std::collections::HashSet;

use checkpoint::{Float, Format};
use naga::valid::{Capabilities, ModuleInfo, ValidationFlags, Validator};

use super::{all, choose};
use crate::kernel::{Access, Field, Kernel, Kind, Scalar, Variant};
use crate::shader::Piece;

/// What every GPU that wgpu runs on has, and subgroups.
const CAPABILITIES: Capabilities = Capabilities::SUBGROUP.union(Capabilities::SHADER_FLOAT16_IN_FLOAT32);
/// What some have beside that.
const MATRICES: Capabilities = Capabilities::COOPERATIVE_MATRIX.union(Capabilities::SHADER_FLOAT16);

/// Fewest threads of a subgroup, and whether kernels wait for each other: without subgroups, on
/// software, Intel's, all others, and NVIDIA's.
const DEVICES: [(u32, bool); 5] = [(0, false), (4, false), (8, false), (32, false), (32, true)];

const FLOATS: [Float; 3] = [Float::F32, Float::F16, Float::Bf16];

fn affine(bits: &[u32]) -> Vec<Format> {
    let groups = |bits: &u32| [32, 64, 128].map(|group| (*bits, group));
    let pairs = bits.iter().flat_map(groups);
    pairs.flat_map(|(bits, group)| FLOATS.map(|scale| Format::Affine { bits, group, scale })).collect()
}

/// Formats of a kernel's weight.
fn formats(kernel: &Kernel) -> Vec<Option<Format>> {
    let formats = if kernel.pieces.contains(&Piece::Codes) {
        let others = [Format::Mxfp4, Format::Mxfp8, Format::Nvfp4];
        affine(&[1, 2, 3, 4, 5, 6, 8]).into_iter().chain(others).chain(FLOATS.map(Format::Plain)).collect()
    } else if kernel.pieces.contains(&Piece::WholeCodes) {
        affine(&[4, 8])
    } else {
        return vec![None];
    };
    formats.into_iter().map(Some).collect()
}

/// Variants of a kernel that can be reached: by default all constants and all formats, each with
/// some of the others, since they meet only through the functions that every format's pieces offer;
/// with PLEIAD_FULL=1 all with all.
fn variants(kernel: &'static Kernel) -> Vec<Variant> {
    let (mut values, formats): (Vec<_>, _) = (kernel.reached().iter().copied().collect(), formats(kernel));
    values.sort_unstable();
    let variant = |values, format| Variant { kernel, format, values };
    if std::env::var("PLEIAD_FULL").is_ok_and(|full| full == "1") {
        return values.iter().flat_map(|v| formats.iter().map(|f| variant(*v, *f))).collect();
    }
    let count = values.len().max(formats.len());
    values.iter().cycle().zip(formats.iter().cycle()).take(count).map(|(v, f)| variant(*v, *f)).collect()
}

/// A struct's members: name, place and type of each.
type Members = Vec<(String, usize, Scalar)>;

/// The members of a struct as a declaration says.
fn declared_members(fields: &[Field]) -> Members {
    let mut members = Vec::new();
    for field in fields {
        for (i, (part, scalar)) in field.parts.iter().enumerate() {
            let name = if part.is_empty() { field.name } else { part };
            members.push((name.to_string(), field.offset + 4 * i, *scalar));
        }
    }
    members
}

/// The members of a struct as a module has them.
fn found_members(kernel: &str, module: &naga::Module, ty: naga::Handle<naga::Type>) -> Members {
    let naga::TypeInner::Struct { members, .. } = &module.types[ty].inner else {
        panic!("{kernel}: parameters that are no struct")
    };
    let member = |member: &naga::StructMember| {
        let scalar = match module.types[member.ty].inner {
            naga::TypeInner::Scalar(naga::Scalar::U32) => Scalar::Uint,
            naga::TypeInner::Scalar(naga::Scalar::F32) => Scalar::Float,
            _ => panic!("{kernel}: {:?} is neither u32 nor f32", member.name),
        };
        (member.name.clone().unwrap_or_default(), member.offset as usize, scalar)
    };
    members.iter().map(member).collect()
}

/// That a module has the parameters and bindings of its declaration, and no others.
fn check_declaration(kernel: &Kernel, module: &naga::Module) {
    let in_group = |group: u32| {
        let globals = module.global_variables.iter().map(|(_, global)| global);
        globals.filter(move |global| global.binding.is_some_and(|binding| binding.group == group))
    };
    let params = in_group(1).find(|global| global.name.as_deref() == Some("params")).expect("parameters");
    assert_eq!(params.binding.map(|binding| binding.binding), Some(0), "{}: params", kernel.name);
    let found = found_members(kernel.name, module, params.ty);
    let declared = declared_members(kernel.fields);
    assert_eq!(found, declared, "{}: parameters of the file, and of its declaration", kernel.name);

    let binding = |global: &naga::GlobalVariable| {
        let naga::AddressSpace::Storage { access } = global.space else {
            panic!("{}: {:?} is no storage buffer", kernel.name, global.name)
        };
        let writes = access.contains(naga::StorageAccess::STORE);
        let number = global.binding.map_or(0, |binding| binding.binding);
        (number, global.name.clone().unwrap_or_default(), if writes { Access::Write } else { Access::Read })
    };
    let mut found: Vec<_> = in_group(0).map(binding).collect();
    found.sort_by_key(|(number, ..)| *number);
    let declared = kernel.bindings.iter().map(|binding| (binding.name.to_string(), binding.access));
    let declared: Vec<_> =
        (0..).zip(declared).map(|(number, (name, access))| (number, name, access)).collect();
    assert_eq!(found, declared, "{}: bindings of the file, and of its declaration", kernel.name);
}

#[test]
fn rows_of_choices_are_as_declared() {
    let source = Variant::of(&choose::choose_max::KERNEL).source(32, false);
    let module = naga::front::wgsl::parse_str(&source).expect("a valid kernel");
    let named = module.types.iter().find(|(_, ty)| ty.name.as_deref() == Some("Choice"));
    let (ty, _) = named.expect("the struct");
    assert_eq!(found_members("choose_max", &module, ty), declared_members(choose::RowChoice::FIELDS));
}

/// The module of a text, and what naga knows of it.
fn checked(name: &Variant, source: &str) -> (naga::Module, ModuleInfo) {
    let module = naga::front::wgsl::parse_str(source)
        .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(source)));
    let capabilities = if name.matrices() { CAPABILITIES | MATRICES } else { CAPABILITIES };
    let info = Validator::new(ValidationFlags::all(), capabilities)
        .validate(&module)
        .unwrap_or_else(|e| panic!("{name}: {}", e.emit_to_string(source)));
    (module, info)
}

#[test]
fn every_variant_is_declared_and_valid_and_becomes_msl_and_spirv() {
    let mut texts = HashSet::new();
    let mut count = 0;
    for kernel in all() {
        let (before, variants) = (texts.len(), variants(kernel));
        for variant in &variants {
            for (subgroup, chains) in DEVICES {
                let source = variant.source(subgroup, chains);
                if (variant.matrices() && subgroup < 32) || !texts.insert(source.clone()) {
                    continue;
                }
                let (module, info) = checked(variant, &source);
                check_declaration(kernel, &module);
                let options = naga::back::spv::Options::default();
                naga::back::spv::write_vec(&module, &info, &options, None)
                    .unwrap_or_else(|e| panic!("{variant}: {e}"));
                // Metal's matrices are 8 x 8: these kernels are not chosen there.
                if variant.matrices() {
                    continue;
                }
                let options = naga::back::msl::Options {
                    lang_version: (2, 4),
                    fake_missing_bindings: true,
                    ..Default::default()
                };
                naga::back::msl::write_string(&module, &info, &options, &Default::default())
                    .unwrap_or_else(|e| panic!("{variant}: {e}"));
            }
        }
        count += variants.len();
        println!("{}: {} variants, {} texts", kernel.name, variants.len(), texts.len() - before);
    }
    println!("{count} variants, {} texts", texts.len());
}

#[test]
fn constants_are_those_that_files_use() {
    for kernel in all() {
        let values = *kernel.reached().iter().next().expect("a variant");
        let variant = Variant { kernel, format: formats(kernel)[0], values };
        let source = variant.source(32, true);
        for (name, kind, _) in variant.constants() {
            let uses = source.matches(&name.to_uppercase()).count();
            assert!(kind != Kind::Number || uses > 1, "{}: nobody uses {name}", kernel.name);
        }
    }
}

#[test]
fn every_file_is_declared() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/shaders");
    let declared: HashSet<&str> = all().iter().map(|kernel| kernel.name).collect();
    for entry in std::fs::read_dir(folder).expect("the folder of kernels") {
        let path = entry.expect("an entry").path();
        let name = path.file_stem().and_then(|stem| stem.to_str()).expect("a name");
        let is_kernel = path.extension().is_some_and(|extension| extension == "wgsl");
        assert!(!is_kernel || declared.contains(name), "{name}.wgsl has no declaration");
    }
}
