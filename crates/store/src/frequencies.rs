//! How often experts are used.

/// Tokens after which a use counts half. Longer ones do better while a text keeps to its topic, and much worse than forgetting
/// the oldest where topics change quickly; the test below measures both.
const HALF_LIFE: f64 = 16.0;

/// For every expert of every layer how often tokens have used it lately: the number of uses, each halved with every 16 tokens
/// that the layer has seen since. If tokens chose independently, the expert with the lowest frequency would be the one
/// that is needed latest: the best one to forget.
#[derive(Default, Debug)]
pub struct Frequencies {
    layers: Vec<Layer>,
}

#[derive(Debug)]
struct Layer {
    /// Half-lives so far.
    now: f64,
    /// The logarithm of what each expert's frequency would be if the first token were now: it does not change as time
    /// goes by, and compares as frequencies do.
    levels: Vec<f64>,
}

impl Frequencies {
    /// A layer with so many experts; returns its number.
    pub fn add_layer(&mut self, experts: usize) -> usize {
        self.layers.push(Layer { now: 0.0, levels: vec![f64::NEG_INFINITY; experts] });
        self.layers.len() - 1
    }

    /// Counts a step of a layer: `tokens` of it, and for each expert the tokens that use it.
    pub fn count(&mut self, layer: usize, tokens: usize, uses: impl IntoIterator<Item = (usize, usize)>) {
        let Layer { now, levels } = &mut self.layers[layer];
        *now += tokens as f64 / HALF_LIFE;
        for (expert, count) in uses {
            let level = &mut levels[expert];
            *level = *now + ((*level - *now).exp2() + count as f64).log2();
        }
    }

    /// Grows with the frequency of an expert: compares experts of all layers.
    pub fn level(&self, layer: usize, expert: usize) -> f64 {
        self.layers[layer].levels[expert]
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeSet, HashMap};

    use super::*;

    const LAYERS: usize = 6;
    const EXPERTS: usize = 64;
    const TOP_K: usize = 4;

    struct Random(u64);

    impl Random {
        /// From 0 to 1.
        fn next(&mut self) -> f64 {
            self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.0 >> 11) as f64 / (1u64 << 53) as f64
        }
    }

    /// Experts of each layer for each token. Experts of a topic have weights `1 / rank^skew`, in an order of their own for every
    /// topic and layer; the topic changes every `stay` tokens, and the same few come back.
    fn trace(tokens: usize, skew: f64, topics: usize, stay: usize) -> Vec<[Vec<usize>; LAYERS]> {
        let mut random = Random(7);
        let mut orders: Vec<Vec<Vec<usize>>> = vec![vec![(0..EXPERTS).collect(); LAYERS]; topics];
        for order in orders.iter_mut().flatten() {
            (1..EXPERTS).rev().for_each(|i| order.swap(i, (random.next() * (i + 1) as f64) as usize));
        }
        let total: f64 = (1..=EXPERTS).map(|rank| (rank as f64).powf(-skew)).sum();
        let mut topic = 0;
        (0..tokens)
            .map(|t| {
                if t % stay == 0 {
                    topic = (random.next() * topics as f64) as usize;
                }
                std::array::from_fn(|layer| {
                    let mut chosen = BTreeSet::new();
                    while chosen.len() < TOP_K {
                        let mut rest = random.next() * total;
                        let rank = (1..EXPERTS).find(|rank| {
                            rest -= (*rank as f64).powf(-skew);
                            rest < 0.0
                        });
                        chosen.insert(orders[topic][layer][rank.unwrap_or(EXPERTS) - 1]);
                    }
                    chosen.into_iter().collect()
                })
            })
            .collect()
    }

    /// Misses of a cache with so many slots that forgets the expert of the lowest level; `by_time` makes the level the time of
    /// the last use.
    fn misses(trace: &[[Vec<usize>; LAYERS]], slots: usize, by_time: bool) -> usize {
        let mut frequencies = Frequencies::default();
        (0..LAYERS).for_each(|_| _ = frequencies.add_layer(EXPERTS));
        let mut cache: HashMap<(usize, usize), usize> = HashMap::new();
        let (mut misses, mut time) = (0, 0);
        for (layer, experts) in trace.iter().flat_map(|token| token.iter().enumerate()) {
            frequencies.count(layer, 1, experts.iter().map(|e| (*e, 1)));
            for &expert in experts {
                time += 1;
                if cache.insert((layer, expert), time).is_some() {
                    continue;
                }
                misses += 1;
                if cache.len() > slots {
                    let level = |(&(l, e), &used): (&(usize, usize), &usize)| match by_time {
                        true => used as f64,
                        false => frequencies.level(l, e),
                    };
                    let idle = cache.iter().filter(|((l, e), _)| *l != layer || !experts.contains(e));
                    let least = idle.min_by(|a, b| level(*a).total_cmp(&level(*b)).then(a.0.cmp(b.0)));
                    let key = *least.expect("more slots than a token needs").0;
                    cache.remove(&key);
                }
            }
        }
        misses
    }

    #[test]
    fn forgetting_the_rarest_never_loses_much_to_forgetting_the_oldest() {
        // Skew, topics, tokens of a topic.
        let kinds = [
            (0.0, 1, 1000),
            (0.5, 1, 1000),
            (1.0, 1, 1000),
            (1.0, 4, 300),
            (1.0, 8, 60),
            (1.5, 4, 20),
            (2.0, 6, 100),
        ];
        for (skew, topics, stay) in kinds {
            let trace = trace(1500, skew, topics, stay);
            for slots in [LAYERS * EXPERTS / 8, LAYERS * EXPERTS / 4, LAYERS * EXPERTS / 2] {
                let (ours, oldest) = (misses(&trace, slots, false), misses(&trace, slots, true));
                assert!(
                    ours as f64 <= 1.05 * oldest as f64,
                    "skew {skew}, {topics} topics of {stay} tokens, {slots} slots: {ours} misses, {oldest} of the other"
                );
            }
        }
    }
}
