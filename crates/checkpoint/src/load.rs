//! From tensors to weights, checked against the shape the model expects.

use safetensors::Dtype;

use crate::{Checkpoint, Error, Float, Mode, QuantSpec, Result, Tensor, Weight, quantization::unsupported};

impl Checkpoint {
    /// Loads `{path}.weight` as a matrix `[rows, cols]`, with `.scales` and `.biases` when it is quantised
    /// and the linear layer's `.bias` when there is one.
    pub fn matrix(&self, path: &str, rows: usize, cols: usize) -> Result<Weight> {
        self.weight(path, &[], rows, cols)
    }

    /// The same for a stack `[count, rows, cols]`.
    pub fn stack(&self, path: &str, count: usize, rows: usize, cols: usize) -> Result<Weight> {
        self.weight(path, &[count], rows, cols)
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
            self.plain(path, stack, rows, cols)?
        };
        let bias = format!("{path}.bias");
        if self.contains(&bias) {
            weight.bias = Some(self.vector(&bias, &[stack, &[rows]].concat())?);
        }
        Ok(weight)
    }

    fn plain(&self, path: &str, stack: &[usize], rows: usize, cols: usize) -> Result<Weight> {
        let data = self.tensor(&format!("{path}.weight"))?;
        if data.dtype == Dtype::U32 {
            // Codes without scales: the shape would be a misleading thing to complain about.
            return Err(self.missing(&format!("{path}.scales")));
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
        if spec.mode != Mode::Affine {
            return Err(unsupported(path, format!("mode {}", spec.mode.name())));
        }
        let data = self.tensor(&format!("{path}.weight"))?;
        let scales = self.tensor(&format!("{path}.scales"))?;
        let biases = self.tensor(&format!("{path}.biases"))?;

        if data.dtype != Dtype::U32 {
            return Err(data.wrong_dtype("U32 (quantised codes)"));
        }
        let float = scales.float()?;
        if biases.dtype != scales.dtype {
            return Err(biases.wrong_dtype(&format!("{} as its scales have", scales.dtype)));
        }
        if !quantization.names(path) {
            spec = told_by_shapes(&data, &scales, &biases, cols).unwrap_or(spec);
        }
        if !cols.is_multiple_of(spec.group) {
            return Err(Error::PartialGroup { name: data.name, cols, group: spec.group });
        }
        // Groups are multiples of 32, and at most 8 words hold 32 codes: exact, and cannot overflow.
        let words = cols / 32 * spec.bits as usize;
        data.check_shape(&[stack, &[rows, words]])?;
        scales.check_shape(&[stack, &[rows, cols / spec.group]])?;
        biases.check_shape(&[stack, &[rows, cols / spec.group]])?;
        Weight::affine(
            path,
            count(stack),
            rows,
            cols,
            spec.bits,
            spec.group,
            float,
            data.bytes,
            scales.bytes,
            biases.bytes,
        )
    }
}

/// The layout that the shapes of codes and scales leave no choice about. Mixed-width checkpoints exist whose config
/// gives only the default; mlx-lm reads them like this too. `None` when the shapes make no sense by themselves.
fn told_by_shapes(data: &Tensor, scales: &Tensor, biases: &Tensor, cols: usize) -> Option<QuantSpec> {
    let (words, groups) = (*data.shape.last()?, *scales.shape.last()?);
    let bits = words.checked_mul(32)?.checked_div(cols)?;
    let group = cols.checked_div(groups)?;
    let exact =
        bits.checked_mul(cols)? == words * 32 && group * groups == cols && scales.shape == biases.shape;
    let spec = QuantSpec { mode: Mode::Affine, bits: u32::try_from(bits).ok()?, group };
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
