//! The trace of a run: one line for each step, made only if somebody listens.

use std::cell::{Cell, RefCell};

/// Receives lines.
pub(crate) type Sink<'t> = &'t mut dyn FnMut(Option<usize>, &str);

/// Where lines go, if anywhere.
pub(crate) struct Trace<'t> {
    sink: RefCell<Option<Sink<'t>>>,
    is_on: bool,
    step: Cell<u64>,
}

impl<'t> Trace<'t> {
    pub(crate) fn new(sink: Option<Sink<'t>>) -> Self {
        Trace {
            is_on: sink.is_some(),
            sink: RefCell::new(sink),
            step: Cell::new(0),
        }
    }

    pub(crate) fn set_step(&self, step: u64) {
        self.step.set(step);
    }

    /// A line, about one key or about none in particular.
    #[inline(always)]
    pub(crate) fn line(&self, key: Option<usize>, text: impl FnOnce() -> String) {
        if self.is_on {
            self.write(key, &text());
        }
    }

    #[cold]
    fn write(&self, key: Option<usize>, text: &str) {
        if let Some(sink) = self.sink.borrow_mut().as_mut() {
            let step = self.step.get();
            let line = match key {
                Some(key) => format!("{step:6} key {key}: {text}"),
                None => format!("{step:6} {text}"),
            };
            sink(key, &line);
        }
    }
}
