//! How often experts are used.

/// Tokens after which a use counts half: about the length of a paragraph, so that a new topic is noticed within it.
const HALF_LIFE: f32 = 128.0;

/// For every expert of every layer how often tokens have used it lately: the number of uses, each halved with every
/// [`HALF_LIFE`] tokens that the layer has seen since. If tokens chose independently, the expert with the lowest frequency would be the one needed
/// latest, the best one to forget.
#[derive(Default, Debug)]
pub struct Frequencies {
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    /// Tokens so far.
    tokens: u64,
    experts: Vec<Uses>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Uses {
    frequency: f32,
    /// The layer's tokens when that was so.
    at: u64,
}

impl Uses {
    fn now(&self, tokens: u64) -> f32 {
        self.frequency * (-((tokens - self.at) as f32) / HALF_LIFE).exp2()
    }
}

impl Frequencies {
    /// A layer with so many experts; returns its number.
    pub fn add_layer(&mut self, experts: usize) -> usize {
        self.layers.push(Layer { tokens: 0, experts: vec![Uses::default(); experts] });
        self.layers.len() - 1
    }

    /// Counts a step of a layer: `tokens` of it, and for each expert the tokens that use it.
    pub fn count(&mut self, layer: usize, tokens: u64, uses: impl IntoIterator<Item = (usize, usize)>) {
        let layer = &mut self.layers[layer];
        layer.tokens += tokens;
        for (expert, count) in uses {
            let uses = &mut layer.experts[expert];
            *uses = Uses { frequency: uses.now(layer.tokens) + count as f32, at: layer.tokens };
        }
    }

    /// How often an expert is used.
    pub fn of(&self, layer: usize, expert: usize) -> f32 {
        let layer = &self.layers[layer];
        layer.experts[expert].now(layer.tokens)
    }
}
