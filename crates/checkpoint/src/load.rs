//! From tensors to weights, checked against the shape the model expects.

use safetensors::Dtype;

use crate::{
    Bytes, Checkpoint, Error, Float, Mode, QuantSpec, Result, Tensor, Weight, small_floats::e8m0,
    weight::E8M0_GROUP,
};

impl Checkpoint {
    /// Loads `{path}.weight` as a matrix `[rows, cols]`, with `.scales` and `.biases`, or `.weight_scale_inv`, when it
    /// is quantised, and the linear layer's `.bias` when there is one.
    pub fn matrix(&self, path: &str, rows: usize, cols: usize) -> Result<Weight> {
        self.weight(path, &[], rows, cols)
    }

    /// The same for a stack `[count, rows, cols]`.
    pub fn stack(&self, path: &str, count: usize, rows: usize, cols: usize) -> Result<Weight> {
        self.weight(path, &[count], rows, cols)
    }

    /// A stack of matrices that are tensors of their own, one per path, all of one format. Hugging Face keeps experts
    /// so. Nothing is copied. Without paths it is an empty stack of plain floats.
    pub fn stack_of(&self, paths: &[String], rows: usize, cols: usize) -> Result<Weight> {
        let matrices =
            paths.iter().map(|path| self.matrix(path, rows, cols)).collect::<Result<Vec<Weight>>>()?;
        let biased = matrices.iter().any(|matrix| matrix.bias.is_some());
        for matrix in &matrices {
            if biased && matrix.bias.is_none() {
                return Err(self.missing(&format!("{}.bias", matrix.name)));
            }
            if matrix.format != matrices[0].format {
                return Err(Error::MixedFormats {
                    name: matrix.name.clone(),
                    found: matrix.format,
                    first: matrices[0].name.clone(),
                    expected: matrices[0].format,
                });
            }
        }
        match Weight::stacked(&matrices) {
            Some(stack) => Ok(stack),
            None => Weight::plain("", 0, rows, cols, Float::F32, Bytes::from_vec(Vec::new())),
        }
    }

    /// The tensor `name` itself as a stack `[count, rows, cols]`, or, when `count` is 1, as a matrix `[rows, cols]` too:
    /// plain, or fp8 with its scales under `{name}_scale_inv`. Hugging Face keeps fused experts so, without `.weight`.
    pub fn tensor_weight(&self, name: &str, count: usize, rows: usize, cols: usize) -> Result<Weight> {
        let flat = count == 1 && self.shape(name).is_some_and(|shape| shape.len() == 2);
        self.unscaled(name, name, if flat { &[] } else { std::slice::from_ref(&count) }, rows, cols)
    }

    /// A plain tensor decoded to f32. Axes of size 1 do not count when its shape is compared with `shape`: a
    /// convolution kernel is stored as `[channels, width, 1]` or `[channels, 1, width]`, depending on who
    /// wrote it.
    pub fn vector(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let tensor = self.tensor(name)?;
        let axes = |shape: &[usize]| shape.iter().copied().filter(|&n| n != 1).collect::<Vec<_>>();
        if axes(&tensor.shape) != axes(shape) {
            return Err(Error::WrongShape {
                name: tensor.name,
                expected: shape.to_vec(),
                found: tensor.shape,
            });
        }
        Ok(tensor.float()?.decode(&tensor.bytes))
    }

    fn weight(&self, path: &str, stack: &[usize], rows: usize, cols: usize) -> Result<Weight> {
        // A weight is quantised if and only if it has scales, as in mlx-lm; the config only says how.
        let mut weight = if self.contains(&format!("{path}.scales")) {
            self.quantized(path, stack, rows, cols)?
        } else {
            self.unscaled(path, &format!("{path}.weight"), stack, rows, cols)?
        };
        let bias = format!("{path}.bias");
        if self.contains(&bias) {
            weight.bias = Some(self.vector(&bias, &[stack, &[rows]].concat())?);
        }
        Ok(weight)
    }

    /// A weight without MLX's scales: plain, or with those of Hugging Face.
    fn unscaled(&self, path: &str, name: &str, stack: &[usize], rows: usize, cols: usize) -> Result<Weight> {
        let data = self.tensor(name)?;
        let scales = format!("{name}_scale_inv");
        if self.contains(&scales) {
            return self.fp8(path, data, self.tensor(&scales)?, stack, rows, cols);
        }
        match data.dtype {
            // Codes without scales: the shape would be a misleading thing to complain about.
            Dtype::U32 => return Err(self.missing(&format!("{path}.scales"))),
            Dtype::F8_E4M3 => return Err(self.missing(&scales)),
            _ => {}
        }
        let float = data.float()?;
        data.check_shape(&[stack, &[rows, cols]])?;
        Weight::plain(path, count(stack), rows, cols, float, data.bytes)
    }

    fn quantized(&self, path: &str, stack: &[usize], rows: usize, cols: usize) -> Result<Weight> {
        let quantization = self.config().quantization();
        let mut spec = quantization.for_path(path).ok_or_else(|| Error::UndeclaredQuantization {
            name: path.to_owned(),
            folder: self.folder().to_owned(),
        })?;
        let data = self.tensor(&format!("{path}.weight"))?;
        let scales = self.tensor(&format!("{path}.scales"))?;
        if data.dtype != Dtype::U32 {
            return Err(data.wrong_dtype("U32 (quantised codes)"));
        }
        if !quantization.names(path) {
            let biases = self.shape(&format!("{path}.biases"));
            spec = told_by_shapes(&data, &scales, biases, cols).unwrap_or(spec);
        }
        if !cols.is_multiple_of(spec.group) {
            return Err(Error::PartialGroup { name: data.name, cols, group: spec.group });
        }
        let groups = [stack, &[rows, cols / spec.group]];
        if spec.mode != Mode::Affine && scales.dtype != Dtype::U8 {
            return Err(scales.wrong_dtype(&format!("U8 (scales of {})", spec.mode.name())));
        }
        let float = if spec.mode == Mode::Affine { scales.float()? } else { Float::F32 };
        // A group is whole words: exact. At most 8 words hold 32 codes: cannot overflow.
        data.check_shape(&[stack, &[rows, cols / 8 * spec.bits as usize / 4]])?;
        scales.check_shape(&groups)?;

        let count = count(stack);
        match spec.mode {
            Mode::Affine => {
                let biases = self.tensor(&format!("{path}.biases"))?;
                if biases.dtype != scales.dtype {
                    return Err(biases.wrong_dtype(&format!("{} as its scales have", scales.dtype)));
                }
                biases.check_shape(&groups)?;
                let QuantSpec { bits, group, .. } = spec;
                let (data, scales, biases) = (data.bytes, scales.bytes, biases.bytes);
                Weight::affine(path, count, rows, cols, bits, group, float, data, scales, biases)
            }
            Mode::Mxfp4 => Weight::mxfp4(path, count, rows, cols, data.bytes, scales.bytes),
            Mode::Mxfp8 => Weight::mxfp8(path, count, rows, cols, data.bytes, scales.bytes),
            Mode::Nvfp4 => {
                let global = self.global_scale(path, stack)?;
                Weight::nvfp4(path, count, rows, cols, data.bytes, scales.bytes, global)
            }
        }
    }

    /// One number per matrix, or a single one for all of them.
    fn global_scale(&self, path: &str, stack: &[usize]) -> Result<Option<Vec<f32>>> {
        let name = format!("{path}.global_scale");
        if !self.contains(&name) {
            return Ok(None);
        }
        let single = self.tensor(&name)?.shape.iter().all(|&axis| axis == 1);
        self.vector(&name, if single { &[] } else { stack }).map(Some)
    }

    /// Codes in e4m3 with the scales of Hugging Face: floats, one per block of the matrix; or powers of two, one per
    /// block or, as in MLX, one per 32 neighbours.
    fn fp8(
        &self,
        path: &str,
        data: Tensor,
        scales: Tensor,
        stack: &[usize],
        rows: usize,
        cols: usize,
    ) -> Result<Weight> {
        // MLX has no such type and keeps the codes as plain bytes.
        if !matches!(data.dtype, Dtype::F8_E4M3 | Dtype::U8) {
            return Err(data.wrong_dtype("F8_E4M3, as it has a scale_inv"));
        }
        data.check_shape(&[stack, &[rows, cols]])?;
        let count = count(stack);
        let powers = matches!(scales.dtype, Dtype::F8_E8M0 | Dtype::U8);
        if powers && cols.is_multiple_of(E8M0_GROUP) {
            let mxfp8 = [stack, &[rows, cols / E8M0_GROUP]].concat();
            if scales.shape == mxfp8 {
                return Weight::mxfp8(path, count, rows, cols, data.bytes, scales.bytes);
            }
        }
        let [block_rows, block_cols] = self.config().quantization().fp8_block();
        scales.check_shape(&[stack, &[rows.div_ceil(block_rows), cols.div_ceil(block_cols)]])?;
        // The scales are a tiny part of the weight: they are brought to one type rather than kept in every one.
        let bytes = match Float::from_dtype(scales.dtype) {
            Some(Float::F32) => scales.bytes,
            Some(float) => Bytes::from_vec(Float::F32.encode(&float.decode(&scales.bytes))),
            None if powers => {
                let values: Vec<f32> = scales.bytes.iter().map(|byte| e8m0(*byte)).collect();
                Bytes::from_vec(Float::F32.encode(&values))
            }
            None => return Err(scales.wrong_dtype("F32, BF16, F16 or F8_E8M0")),
        };
        Weight::fp8_blocks(path, count, rows, cols, block_rows, block_cols, data.bytes, bytes)
    }
}

/// The layout that the types and shapes of codes and scales leave no choice about. Mixed-width checkpoints exist whose
/// config gives only the default; mlx-lm reads them like this too. `None` when the shapes make no sense by themselves.
fn told_by_shapes(
    data: &Tensor,
    scales: &Tensor,
    biases: Option<&[usize]>,
    cols: usize,
) -> Option<QuantSpec> {
    let (words, groups) = (*data.shape.last()?, *scales.shape.last()?);
    let bits = words.checked_mul(32)?.checked_div(cols)?;
    let group = cols.checked_div(groups)?;
    let exact = bits.checked_mul(cols)? == words * 32
        && group * groups == cols
        && biases.is_none_or(|biases| biases == scales.shape);
    // Only affine has biases, and scales in the type of the original weights.
    let mode = match (bits, group) {
        _ if biases.is_some() || scales.dtype != Dtype::U8 => Mode::Affine,
        (4, 16) => Mode::Nvfp4,
        (4, 32) => Mode::Mxfp4,
        (8, 32) => Mode::Mxfp8,
        _ => return None,
    };
    let spec = QuantSpec { mode, bits: u32::try_from(bits).ok()?, group };
    spec.check(&data.name).ok().filter(|_| exact)
}

fn count(stack: &[usize]) -> usize {
    stack.first().copied().unwrap_or(1)
}

impl Tensor {
    fn float(&self) -> Result<Float> {
        Float::from_dtype(self.dtype).ok_or_else(|| self.wrong_dtype(Float::EXPECTED))
    }

    fn wrong_dtype(&self, expected: &str) -> Error {
        Error::WrongDtype { name: self.name.clone(), expected: expected.to_owned(), found: self.dtype }
    }

    fn check_shape(&self, expected: &[&[usize]]) -> Result<()> {
        let expected = expected.concat();
        if self.shape == expected {
            return Ok(());
        }
        Err(Error::WrongShape { name: self.name.clone(), expected, found: self.shape.clone() })
    }
}
