//! A server in a thread, and its clients.

use std::net::{IpAddr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;
use trefoil_ordered::service::Request;
use trefoil_ordered::{Answer, Carrier, Committed, Refused, Service};
use trefoil_ordered_verbs::{
    ConnectError, Counts, QueueAddress, VerbsOptions, VerbsQueue, VerbsWorker,
};
use trefoil_verbs::Device;

pub(crate) const PATIENCE: Duration = Duration::from_secs(600);
pub(crate) const TOKEN: &[u8] = b"a token";

/// What was executed, in order.
type Log = Arc<Mutex<Vec<Vec<u8>>>>;

/// Notes what it executes, and answers with how much that was before.
struct Recorder {
    log: Log,
    pause: Arc<AtomicBool>,
}

impl Service for Recorder {
    fn execute(&mut self, request: Request<'_>, answer: &mut Answer) {
        while self.pause.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let mut log = self.log.lock().expect("no panic");
        let place = log.len() as u64;
        answer.put(&place.to_le_bytes()).expect("eight bytes");
        log.push(request.payload.to_vec());
    }
}

pub(crate) fn devices() -> Vec<IpAddr> {
    let devices = Device::addresses().expect("RDMA devices");
    assert!(!devices.is_empty(), "no RDMA device");
    devices
}

pub(crate) fn options() -> VerbsOptions {
    VerbsOptions {
        slots: 32,
        window: 16,
        client_count_max: 8,
        spin: Duration::from_micros(20),
        nap: Duration::from_millis(1),
    }
}

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    log: Log,
    /// While it is set, nothing is executed, and the worker stands still.
    pub(crate) pause: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    /// Whether its end is an orderly one.
    orderly: Arc<AtomicBool>,
    thread: Option<JoinHandle<Counts>>,
}

impl Server {
    pub(crate) fn start(epoch: u64, options: VerbsOptions) -> Self {
        Self::start_at(epoch, options, (devices()[0], 0).into())
    }

    pub(crate) fn start_at(epoch: u64, options: VerbsOptions, at: SocketAddr) -> Self {
        let listener = TcpListener::bind(at).expect("a port");
        let address = listener.local_addr().expect("an address");
        let mut worker =
            VerbsWorker::start(epoch, devices()[0], listener, TOKEN, options).expect("a queue");
        let log = Log::default();
        let stop = Arc::new(AtomicBool::new(false));
        let orderly = Arc::new(AtomicBool::new(true));
        let pause = Arc::new(AtomicBool::new(false));
        let mut service = Recorder {
            log: Arc::clone(&log),
            pause: Arc::clone(&pause),
        };
        let (stopped, is_orderly) = (Arc::clone(&stop), Arc::clone(&orderly));
        let thread = std::thread::spawn(move || {
            let mut idle_since = None;
            while !stopped.load(Ordering::SeqCst) {
                let executed = worker.run_once(&mut service).expect("a device");
                worker.rest(executed, &mut idle_since).expect("a device");
            }
            match is_orderly.load(Ordering::SeqCst) {
                true => worker.finish(&mut service).expect("a device"),
                false => worker.counts(),
            }
        });
        Server {
            address,
            log,
            pause,
            stop,
            orderly,
            thread: Some(thread),
        }
    }

    pub(crate) fn at(&self, device: usize) -> QueueAddress {
        let devices = devices();
        QueueAddress {
            address: self.address,
            token: TOKEN.into(),
            device: Some(devices[device % devices.len()]),
        }
    }

    pub(crate) fn client(&self, device: usize) -> Result<VerbsQueue, ConnectError> {
        VerbsQueue::connect(self.at(device), PATIENCE)
    }

    pub(crate) fn executed(&self) -> Vec<Vec<u8>> {
        self.log.lock().expect("no panic").clone()
    }

    pub(crate) fn end(&mut self) -> Counts {
        self.stop.store(true, Ordering::SeqCst);
        let thread = self.thread.take().expect("one end");
        thread.join().expect("no panic in the server")
    }

    /// As a process that is killed: nothing is said, nothing more is executed.
    pub(crate) fn vanish(&mut self) {
        self.orderly.store(false, Ordering::SeqCst);
        self.end();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.end();
        }
    }
}

/// Puts a request into its place, waiting for room where there is none.
pub(crate) fn submit(client: &mut VerbsQueue, request: &[u8], nilext: bool) -> Committed {
    loop {
        match client.submit(request, nilext) {
            Ok(committed) => return committed,
            Err(Refused::Full) => client.wait_for_room(PATIENCE).expect("a server"),
            Err(refused) => panic!("{refused}"),
        }
    }
}
