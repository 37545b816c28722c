//! A desk at which the strategy decides, pods by their ids, and requests of any size.

use std::sync::Arc;

use baton_core::ask::{Api, Ask};
use baton_core::body::{BodyLimits, Envelope};
use baton_core::dice::Dice;
use baton_core::fleet::{Engine, Fleet, FleetChange, PairingMode, Role, Seat, Status, Worker};
use baton_core::place::cascade::knobs::Knobs;
use baton_core::place::cascade::resolve::resolve;
use baton_core::place::receipt::Receipt;
use baton_core::place::{Cascade, Computed, Look, Miss, Placement, Strategy, Taken, Tuning};
use baton_core::time::Instant;
use baton_core::wishes::{Wish, Wishes};

pub const NOW: Instant = Instant::from_micros(1_000_000_000);
pub const INDEX: &str = "stormservice.orchestration.aibrix.ai/pod-group-index";
pub const CONFIG: &str = "model.aibrix.ai/config";

/// A pod by its id, whose first letter says what it does: p, d, or c for both phases.
pub fn pod(id: &str, labels: &[(&str, &str)], config: Option<&str>) -> Worker {
    let role = match id.as_bytes()[0] {
        b'p' => Role::Prefill,
        b'd' => Role::Decode,
        _ => Role::Whole,
    };
    let mut w = Worker::new(id, format!("http://{id}:8000"), role);
    w.engine = Engine::Vllm;
    w.labels.insert("model.aibrix.ai/name".into(), "m".into());
    w.labels.extend(labels.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())));
    w.annotations.extend(config.map(|text| (CONFIG.to_owned(), text.to_owned())));
    w
}

pub fn of(id: &str, roleset: &str) -> Worker {
    pod(id, &[("roleset-name", roleset)], None)
}

/// One that takes prompts of these lengths.
pub fn ranged(id: &str, roleset: &str, min: u64, max: u64) -> Worker {
    pod(id, &[("roleset-name", roleset)], Some(&bounds(min, max, false)))
}

pub fn combined(id: &str, min: u64, max: u64) -> Worker {
    pod(id, &[], Some(&bounds(min, max, true)))
}

pub fn bounds(min: u64, max: u64, combined: bool) -> String {
    format!(
        r#"{{"profiles":{{"default":{{"routingStrategy":"pd","routingConfig":{{
        "promptLenBucketMinLength":{min},"promptLenBucketMaxLength":{max},"combined":{combined}}}}}}}}}"#
    )
}

pub fn fleet(workers: impl IntoIterator<Item = Worker>) -> Fleet {
    let seats = (0u32..).zip(workers).map(|(slot, worker)| {
        let seat = Seat::new(slot, worker);
        seat.pulse.set_status(Status::Ready);
        FleetChange::Join(seat)
    });
    Fleet::new(PairingMode::Lenient).with(seats)
}

pub fn seat<'a>(fleet: &'a Fleet, id: &str) -> &'a Arc<Seat> {
    fleet.seats().find(|s| s.worker.id == id).unwrap()
}

/// A request with a prompt of so many bytes, of which it is said that it has so many tokens.
pub fn ask(bytes: usize, tokens: Option<u64>) -> Ask {
    told(&"x".repeat(bytes), tokens)
}

pub fn told(prompt: &str, tokens: Option<u64>) -> Ask {
    let body = format!(r#"{{"model":"m","prompt":"{prompt}"}}"#);
    let body = Envelope::parse(body.into(), &BodyLimits::default()).unwrap();
    let mut ask = Ask::read(Api::Completions, &body).unwrap();
    ask.prompt_tokens = tokens;
    ask
}

pub fn wishing(mut ask: Ask, wishes: &[(Wish, &str)]) -> Ask {
    let mut all = Wishes::default();
    wishes.iter().for_each(|(wish, text)| all.hear(*wish, text.as_bytes()));
    ask.wishes = Some(Box::new(all));
    ask
}

/// The strategy with its settings.
pub struct Desk {
    pub strategy: Strategy,
    pub knobs: Arc<Knobs>,
    pub dice: Dice,
    pub now: Instant,
}

impl Desk {
    pub fn new(knobs: Knobs) -> Desk {
        let knobs = Arc::new(knobs);
        let strategy = Strategy::Cascade(Cascade::new(&knobs, &Tuning::default()));
        Desk { strategy, knobs, dice: Dice::new(7), now: NOW }
    }

    pub fn cascade(&self) -> &Cascade {
        match &self.strategy {
            Strategy::Cascade(cascade) => cascade,
            Strategy::Legwise(_) | Strategy::Whole(_) => panic!("not the cascade"),
        }
    }

    pub fn place(&mut self, fleet: &Fleet, ask: &Ask) -> Result<(Placement, Receipt), Miss> {
        self.after(fleet, ask, &[])
    }

    pub fn after(&mut self, fleet: &Fleet, ask: &Ask, tried: &[u32]) -> Result<(Placement, Receipt), Miss> {
        let routing = resolve(fleet, ask, &self.knobs).map_err(Miss::Nobody)?;
        let look = Look { routing: Some(&routing), ..Look::new(fleet, ask, self.now) }.after(tried);
        let look = Look { receipt: Receipt::on().into(), ..look };
        let placement = self.strategy.place(&look, &mut self.dice)?;
        Ok((placement, look.into_receipt()))
    }

    /// Another decode for what a prefill has computed for this request, after those that were tried.
    pub fn replaced(
        &mut self,
        fleet: &Fleet,
        (ask, tried): (&Ask, &[u32]),
        computed: Computed<'_>,
    ) -> (Taken, Receipt) {
        let routing = resolve(fleet, ask, &self.knobs).unwrap();
        let look = Look { routing: Some(&routing), ..Look::new(fleet, ask, self.now) }.after(tried);
        let look = Look { receipt: Receipt::on().into(), ..look };
        let taken = self.strategy.replace(&look, computed, &mut self.dice).unwrap();
        (taken, look.into_receipt())
    }

    /// The ids of the chosen, `p+d` or alone, or what is said instead.
    pub fn chosen(&mut self, fleet: &Fleet, ask: &Ask) -> String {
        match self.place(fleet, ask) {
            Ok((placement, _)) => ids(&placement),
            Err(Miss::Nobody(fault) | Miss::Full(fault)) => fault.answer().message,
        }
    }
}

pub fn ids(placement: &Placement) -> String {
    let id = |t: &Taken| t.seat.worker.id.clone();
    match placement {
        Placement::Whole { worker } | Placement::Prefill { worker } => id(worker),
        Placement::Pair { prefill, decode } => format!("{}+{}", id(prefill), id(decode)),
    }
}

pub fn at_rest(fleet: &Fleet) {
    assert!(fleet.seats().all(|s| s.load.in_flight() == 0), "a place was not given back");
}

pub fn bucketing() -> Knobs {
    Knobs { bucketing: true, ..Knobs::default() }
}
