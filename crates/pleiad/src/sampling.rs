//! Flags for the sampler.

use clap::Args;
use engine::SamplingParams;

use crate::error::Error;

/// How tokens are chosen. What is not given stays as the command has it.
#[derive(Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingArgs {
    /// Always the most probable token
    #[arg(long, conflicts_with = "temperature")]
    greedy: bool,

    /// 0: always the most probable token; above: more variety
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,

    /// Choose among so many tokens; 0: all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,

    /// Choose among the fewest tokens with this probability together
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,

    /// Choose among tokens at least this probable, relative to the best
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    min_p: Option<f32>,

    /// Above 1: avoid tokens of the text so far
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    repetition_penalty: Option<f32>,

    /// Above 0: avoid tokens of the answer so far
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    presence_penalty: Option<f32>,

    /// Above 0: avoid them the more, the more often they came
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    frequency_penalty: Option<f32>,

    /// The same seed gives the same answer
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
}

impl SamplingArgs {
    /// The command's own settings, overruled by what was given.
    pub fn params(&self, mut params: SamplingParams) -> Result<SamplingParams, Error> {
        fn set<T: Copy>(value: Option<T>, param: &mut T) {
            *param = value.unwrap_or(*param);
        }
        set(self.temperature, &mut params.temperature);
        set(self.top_k, &mut params.top_k);
        set(self.top_p, &mut params.top_p);
        set(self.min_p, &mut params.min_p);
        set(self.repetition_penalty, &mut params.repetition_penalty);
        set(self.presence_penalty, &mut params.presence_penalty);
        set(self.frequency_penalty, &mut params.frequency_penalty);
        params.seed = self.seed.or(params.seed);
        if self.greedy {
            params.temperature = 0.0;
        }
        params.validate()?;
        Ok(params)
    }
}
