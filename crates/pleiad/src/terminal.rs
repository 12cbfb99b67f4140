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
pub struct PromptBar(Option<ProgressBar>);

impl PromptBar {
    /// A bar for `tokens` tokens; prompts of up to `short` tokens need none.
    pub fn new(tokens: usize, short: usize) -> Self {
        if tokens <= short || !stderr().is_terminal() {
            return Self(None);
        }
        let bar = ProgressBar::new(tokens as u64);
        if let Ok(style) =
            ProgressStyle::with_template("reading the prompt {bar:30} {pos}/{len} tokens, {eta} left")
        {
            bar.set_style(style);
        }
        Self(Some(bar))
    }

    /// So many tokens are done.
    pub fn set(&self, done: usize) {
        if let Some(bar) = &self.0 {
            bar.set_position(done as u64);
        }
    }

    /// The prompt is done.
    pub fn clear(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

impl Drop for PromptBar {
    fn drop(&mut self) {
        self.clear();
    }
}
