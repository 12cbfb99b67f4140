//! What of a model is where when memory is too small for all of it.

use std::fmt;

use engine::bytes;
use models::Sizes;

/// Memory for what is neither weights nor caches: activations, the tokenizer, the program.
pub const BESIDE: u64 = 300_000_000;

/// Experts that must fit at least: a token's in one layer, and as many on their way.
pub const LEAST_EXPERTS: u64 = 16;

/// Caches get this part of what is left beside the weights that stay, unless a context was asked for.
const CACHE_PART: u64 = 4;

/// A model stays in memory whole if caches have this part of its size beside it: more is a wish, and reading from disk a high price.
const LEAST_CACHE_PART: u64 = 32;

/// What is free stays free to this part, and at least so many bytes, unless a budget was given.
const MARGIN: (u64, u64) = (16, 500_000_000);

/// How a model larger than memory is spread.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Bytes for all of it.
    pub budget: u64,
    /// The model.
    pub sizes: Sizes,
    /// Bytes for caches of sequences.
    pub caches: u64,
    /// Bytes for experts.
    pub experts: u64,
}

/// A budget that even the smallest plan does not keep to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub struct TooSmall {
    budget: u64,
    sizes: Sizes,
    caches: u64,
}

impl fmt::Display for TooSmall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { budget, sizes, caches } = self;
        let needed = sizes.others + LEAST_EXPERTS * sizes.expert + caches + BESIDE;
        let [needed, budget, others, experts, caches, beside] =
            [needed, *budget, sizes.others, LEAST_EXPERTS * sizes.expert, *caches, BESIDE].map(bytes);
        write!(
            f,
            "the model needs at least {needed} of memory, and there are {budget} for it: {others} for weights that stay, {experts} for \
             {LEAST_EXPERTS} of its experts, {caches} for caches and {beside} beside them"
        )
    }
}

/// What may be used of the memory that is free.
pub fn usable(free: u64) -> u64 {
    free.saturating_sub((free / MARGIN.0).max(MARGIN.1))
}

impl Plan {
    /// A plan for a model of which `budget` bytes can be in memory. `caches` are the bytes of one sequence of the context that was
    /// asked for, or else of the model's own, which is then only a wish. `None` when everything fits, or when there are no
    /// experts to be read from disk.
    pub fn new(budget: u64, sizes: Sizes, caches: u64, asked: bool) -> Result<Option<Self>, TooSmall> {
        let all = sizes.others + sizes.experts + BESIDE;
        let enough = all + if asked { caches } else { caches.min(all / LEAST_CACHE_PART) };
        if budget >= enough || sizes.experts == 0 {
            return Ok(None);
        }
        let left = budget.saturating_sub(sizes.others + BESIDE);
        let caches = if asked { caches } else { caches.min(left / CACHE_PART) };
        let experts = left.saturating_sub(caches);
        if experts < LEAST_EXPERTS * sizes.expert {
            return Err(TooSmall { budget, sizes, caches });
        }
        Ok(Some(Self { budget, sizes, caches, experts: experts.min(sizes.experts) }))
    }
}

impl Plan {
    /// The part of all experts that is in memory, from 0 to 1.
    #[cfg(feature = "gpu")]
    pub fn part(&self) -> f64 {
        self.experts as f64 / self.sizes.experts as f64
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { budget, sizes, caches, experts } = self;
        let percent = 100 * experts / sizes.experts.max(1);
        let [budget, all, others, experts, caches] =
            [*budget, sizes.experts, sizes.others, *experts, *caches].map(bytes);
        write!(
            f,
            "of {budget} of memory {others} hold the weights that every token needs, {experts} a part of the experts ({percent}% of {all}; \
             the rest is read from disk as it is needed), {caches} caches"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIZES: Sizes = Sizes { experts: 200_000_000_000, expert: 7_000_000, others: 9_000_000_000 };

    #[test]
    fn what_fits_needs_no_plan() {
        assert_eq!(Plan::new(300_000_000_000, SIZES, 5_000_000_000, false), Ok(None));
        assert_eq!(Plan::new(209_000_000_000, SIZES, 0, true).unwrap().map(|plan| plan.experts), {
            Some(199_700_000_000)
        });
        // A context as long as the model's own is worth less than all experts in memory.
        assert_eq!(Plan::new(220_000_000_000, SIZES, 90_000_000_000, false), Ok(None));
        assert!(Plan::new(220_000_000_000, SIZES, 90_000_000_000, true).unwrap().is_some());
        let dense = Sizes { experts: 0, expert: 0, ..SIZES };
        assert_eq!(Plan::new(1, dense, 5, false), Ok(None));
    }

    #[test]
    fn everything_stays_inside_the_budget() {
        for (caches, asked) in [(2_000_000_000, true), (50_000_000_000, false), (0, false)] {
            let plan = Plan::new(24_000_000_000, SIZES, caches, asked).unwrap().unwrap();
            assert_eq!(plan.experts + plan.caches + SIZES.others + BESIDE, plan.budget);
            assert!(if asked { plan.caches == caches } else { plan.caches <= caches });
        }
    }

    #[test]
    fn a_refusal_has_numbers() {
        let error = Plan::new(9_300_000_000, SIZES, 1_000_000, true).unwrap_err().to_string();
        assert!(error.contains("at least 9.4 GB") && error.contains("9.3 GB for it"), "{error}");
    }
}
