//! From an HTTP request to a question whose prompts are ready.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::Request;

use crate::answer::{Prepared, Question, Replies, ask, prepare};
use crate::app::{App, ServedModel, off_thread};
use crate::body;
use crate::fault::Fault;
use crate::fields::{Fields, parse};

/// A request that has been read: what its API wants beside the question, the question, its prompts.
pub struct Asked<T> {
    pub wishes: T,
    pub question: Question,
    pub prepared: Vec<Prepared>,
    at: Instant,
}

/// How an API reads its requests.
type Read<T> = fn(&Fields<'_>, &ServedModel) -> Result<(T, Question), Fault>;

/// Reads a request as its API has it.
pub async fn receive<T: Send + 'static>(
    app: &Arc<App>,
    request: Request,
    read: Read<T>,
) -> Result<Asked<T>, Fault> {
    let at = Instant::now();
    let (head, sent) = request.into_parts();
    let bytes = body::read(&app.options, &head.headers, sent).await?;
    let app = app.clone();
    off_thread(move || {
        let map = parse(&bytes)?;
        let (wishes, mut question) = read(&Fields::new(&map), &app.model)?;
        let prepared = prepare(&app.model, &mut question)?;
        Ok(Asked { wishes, question, prepared, at })
    })
    .await
}

impl<T> Asked<T> {
    /// Hands the question to the scheduler.
    pub fn ask(self, app: &Arc<App>) -> Result<Replies, Fault> {
        ask(app, &self.question, self.prepared, self.at)
    }
}
