//! What is on its way: delayed, lost, repeated, cut.

use super::rng::Rng;

/// One direction between two parties.
#[derive(Clone, Debug)]
pub struct Link<T> {
    on_the_way: Vec<(f64, T)>,
    /// Down until then.
    pub cut_until: f64,
    pub loss: f64,
    pub repeat: f64,
    /// Delays are up to this, in seconds.
    pub delay_max: f64,
    /// Those of repeated messages up to this.
    pub late_max: f64,
}

impl<T: Clone> Link<T> {
    pub fn new(delay_max: f64) -> Self {
        Link {
            on_the_way: Vec::new(),
            cut_until: 0.0,
            loss: 0.0,
            repeat: 0.0,
            delay_max,
            late_max: 3.0 * delay_max,
        }
    }

    pub fn send(&mut self, now: f64, rng: &mut Rng, message: T) {
        if now < self.cut_until || rng.chance(self.loss) {
            return;
        }
        if rng.chance(self.repeat) {
            let late = now + self.late_max * rng.unit();
            self.on_the_way.push((late, message.clone()));
        }
        let arrival = now + self.delay_max * rng.unit();
        self.on_the_way.push((arrival, message));
    }

    /// What has arrived, in the order of arrival.
    pub fn receive(&mut self, now: f64) -> Vec<T> {
        let mut arrived = Vec::new();
        let mut i = 0;
        while i < self.on_the_way.len() {
            if self.on_the_way[i].0 <= now {
                arrived.push(self.on_the_way.remove(i));
            } else {
                i += 1;
            }
        }
        arrived.sort_by(|a, b| a.0.total_cmp(&b.0));
        if now < self.cut_until {
            return Vec::new();
        }
        arrived.into_iter().map(|(_, message)| message).collect()
    }
}
