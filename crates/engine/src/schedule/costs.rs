//! Whether drafts of a drafting head pay: how often they are accepted, for each request, and what steps
//! take with them and without.

use std::time::Duration;

use super::step_loop::FEW;

/// Most tokens drafted at once.
pub(super) const MOST: usize = 3;

/// Share of the latest draft token in what is known of a request's drafts, and of the latest step in what
/// steps take.
const LATEST: f64 = 0.1;
const LATEST_STEP: f64 = 0.3;

/// How often drafts are accepted, before any was made.
const HOPE: f64 = 0.7;

/// Tokens to wait when they do not pay; twice as many each time.
const PAUSE: usize = 16;
const LONGEST_PAUSE: usize = 512;

/// Steps of a kind until it is known what they take.
const FIRST: usize = 3;

/// Steps with drafts until steps without are measured anew, and steps without until drafts that did not
/// pay are tried anew.
const PLAIN_AFTER: usize = 64;
const FORGET: usize = 512;

/// Cost of a draft token in steps without drafts, until it is known.
const DRAFT_COST: f64 = 0.35;

/// Drafts must make an answer this much faster.
const WORTH: f64 = 1.03;

/// How the drafts for one request fared.
#[derive(Debug)]
pub(super) struct Trust {
    /// The part that was accepted.
    rate: f64,
    /// No draft before the request's sequence has so many tokens.
    not_before: usize,
    pause: usize,
}

impl Default for Trust {
    fn default() -> Self {
        Self { rate: HOPE, not_before: 0, pause: PAUSE }
    }
}

impl Trust {
    /// Learns how many of the draft tokens of a step were accepted.
    pub fn learn(&mut self, drafted: usize, accepted: usize) {
        for _ in 0..accepted {
            self.rate += LATEST * (1.0 - self.rate);
        }
        if accepted < drafted {
            self.rate -= LATEST * self.rate;
        } else {
            self.pause = PAUSE;
        }
    }

    /// Whether to wait with drafts for a sequence of `len` tokens.
    pub fn pauses(&self, len: usize) -> bool {
        len < self.not_before
    }

    /// How many tokens to draft for a sequence of `len` tokens, one of so many requests at once.
    pub fn length(&mut self, costs: &Costs, requests: usize, len: usize) -> usize {
        if self.pauses(len) || costs.is_measuring(requests) {
            return 0;
        }
        let length = costs.best(requests, self.rate);
        if length == 0 {
            self.not_before = len + self.pause;
            self.pause = (2 * self.pause).min(LONGEST_PAUSE);
            // Enough for a few drafts: the text may have become easier.
            self.rate = self.rate.max(HOPE - 0.1);
        }
        length
    }
}

/// What steps take, by the number of requests.
#[derive(Debug, Default)]
pub(super) struct Costs([Steps; FEW]);

#[derive(Debug, Default)]
struct Steps {
    /// By the number of draft tokens for each request.
    seconds: [Seconds; MOST + 1],
    /// Steps with drafts since the last without, and the other way round.
    with: usize,
    without: usize,
}

/// What a kind of step takes.
#[derive(Debug, Default)]
struct Seconds {
    each: f64,
    steps: usize,
}

impl Seconds {
    fn learn(&mut self, took: f64) {
        self.each = match self.steps {
            0 => took,
            // The first ones may find their weights on disk.
            steps if steps < FIRST => self.each.min(took),
            _ => self.each + LATEST_STEP * (took - self.each),
        };
        self.steps += 1;
    }

    fn known(&self) -> Option<f64> {
        (self.steps >= FIRST).then_some(self.each)
    }
}

impl Costs {
    /// Whether steps without drafts are to be measured now.
    pub fn is_measuring(&self, requests: usize) -> bool {
        self.0[requests - 1].seconds[0].known().is_none()
    }

    /// Learns what a step took. Only steps that check as many
    /// draft tokens as they make tell what one number of them costs.
    pub fn learn(&mut self, requests: usize, checked: usize, made: usize, took: Duration) {
        let Some(steps) = self.0.get_mut(requests - 1).filter(|_| checked == made) else { return };
        let Steps { seconds, with, without } = steps;
        let length = ((2 * checked + requests) / (2 * requests)).min(MOST);
        (*with, *without) = if length > 0 { (*with + 1, 0) } else { (0, *without + 1) };
        if *with == PLAIN_AFTER {
            seconds[0] = Seconds::default();
        }
        if *without == FORGET {
            seconds[1..].iter_mut().for_each(|seconds| *seconds = Seconds::default());
        }
        seconds[length].learn(took.as_secs_f64());
    }

    /// How much longer a step with so many draft tokens takes than one without: what was measured, else in proportion to another number of
    /// them.
    fn ratio(&self, requests: usize, length: usize) -> f64 {
        let seconds = &self.0[requests - 1].seconds;
        let each = |l: usize| Some((seconds[l].known()? / seconds[0].known()? - 1.0) / l as f64);
        let each = (1..=length).rev().chain(length + 1..=MOST).find_map(each).unwrap_or(DRAFT_COST);
        1.0 + length as f64 * each.max(0.0)
    }

    /// The number of draft tokens that brings most tokens in the same time, when this part of them is
    /// accepted; 0 if none pays.
    fn best(&self, requests: usize, rate: f64) -> usize {
        let speed = |length: usize| {
            let tokens: f64 = (0..=length).map(|i| rate.powi(i as i32)).sum();
            tokens / self.ratio(requests, length)
        };
        let best = (1..=MOST).max_by(|a, b| speed(*a).total_cmp(&speed(*b)));
        best.filter(|length| speed(*length) > WORTH).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    /// Costs of a machine where a step takes 100 ms and each guess so many more.
    fn measured(guess: u32) -> Costs {
        let mut costs = Costs::default();
        for _ in 0..FIRST {
            (0..=MOST).for_each(|l| costs.learn(1, l, l, (100 + l as u32 * guess) * MS));
        }
        costs
    }

    #[test]
    fn guesses_are_made_where_they_pay() {
        for (guess, rate, expected) in [
            (10, 0.95, 3),
            (40, 0.95, 3),
            (40, 0.6, 1),
            (40, 0.3, 0),
            (60, 0.7, 1),
            (75, 0.7, 0),
            (200, 1.0, 0),
            (0, 0.02, 0),
        ] {
            assert_eq!(measured(guess).best(1, rate), expected, "{guess} ms, {rate}");
        }
        assert_eq!(Costs::default().best(1, HOPE), 2);
    }

    #[test]
    fn steps_without_guesses_are_measured_first_and_now_and_then() {
        let mut costs = Costs::default();
        for took in [900, 100, 110] {
            assert!(costs.is_measuring(1));
            // Neither with guesses nor without.
            costs.learn(1, 1, 0, MS);
            costs.learn(1, 0, 0, took * MS);
        }
        assert!(!costs.is_measuring(1) && costs.is_measuring(2));
        for took in [700, 200, 300] {
            assert_eq!(costs.ratio(1, 1), 1.0 + DRAFT_COST);
            costs.learn(1, 1, 1, took * MS);
        }
        assert!((costs.ratio(1, 1) - 2.0).abs() < 1e-9 && (costs.ratio(1, 3) - 4.0).abs() < 1e-9);
        (FIRST..PLAIN_AFTER).for_each(|_| costs.learn(1, 1, 1, 200 * MS));
        assert!(costs.is_measuring(1));
    }

    #[test]
    fn guesses_that_did_not_pay_are_tried_again() {
        let mut costs = measured(200);
        assert_eq!(costs.best(1, 1.0), 0);
        (0..FORGET).for_each(|_| costs.learn(1, 0, 0, 100 * MS));
        assert!(costs.best(1, HOPE) > 0);
    }

    #[test]
    fn an_answer_whose_guesses_are_wrong_gets_fewer_and_fewer() {
        let costs = measured(40);
        let (mut trust, mut guesses) = (Trust::default(), [0; 4]);
        for len in 0..2000 {
            let length = trust.length(&costs, 1, len);
            guesses[len / 500] += length;
            if length > 0 {
                trust.learn(length, 0);
            }
        }
        assert!(guesses[0] > 0 && guesses[3] <= 8, "{guesses:?}");
        (0..50).for_each(|_| trust.learn(1, 1));
        assert_eq!(trust.length(&costs, 1, 10_000), 3);
    }
}
