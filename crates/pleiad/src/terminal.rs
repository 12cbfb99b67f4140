//! The terminal: interrupts and styles.

use std::io::{IsTerminal, stderr, stdout};
use std::sync::atomic::{AtomicBool, Ordering};

use indicatif::{ProgressBar, ProgressStyle};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// From now on Ctrl-C sets a mark instead of ending the program.
pub fn catch_interrupts() {
    // It fails only when a handler is already there, and then it is this one.
    let _ = ctrlc::set_handler(|| {
        // A second one while the first is not served ends the program after all: something hangs.
        if INTERRUPTED.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
}

/// Whether Ctrl-C has been pressed since [`clear_interrupt`].
pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::SeqCst)
}

/// Forgets an interrupt.
pub fn clear_interrupt() {
    INTERRUPTED.store(false, Ordering::SeqCst);
}

/// Whether styles belong on the standard output.
pub fn styled() -> bool {
    stdout().is_terminal() && std::env::var_os("NO_COLOR").is_none()
}

/// A bar for a long prompt, on a terminal only, gone when dropped.
#[derive(Default)]
pub struct PromptBar(Option<ProgressBar>);

/// A prompt with up to so many tokens to read needs no bar.
const SHORT_PROMPT: usize = 512;

impl PromptBar {
    /// So many tokens of the prompt are behind. Whether there is a bar is decided by what is left at the first call.
    pub fn set(&mut self, done: usize, of: usize) {
        match &self.0 {
            Some(bar) => bar.set_position(done as u64),
            None if of - done > SHORT_PROMPT && stderr().is_terminal() => self.0 = Some(prompt_bar(done, of)),
            None => {}
        }
    }

    /// The prompt is done.
    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn prompt_bar(done: usize, of: usize) -> ProgressBar {
    let bar = ProgressBar::new(of as u64);
    if let Ok(style) =
        ProgressStyle::with_template("reading the prompt {bar:30} {pos}/{len} tokens, {eta} left")
    {
        bar.set_style(style);
    }
    bar.set_position(done as u64);
    // What was known before says nothing about the speed.
    bar.reset_eta();
    bar
}

impl Drop for PromptBar {
    fn drop(&mut self) {
        self.clear();
    }
}
