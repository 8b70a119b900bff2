//! A gateway on another host than the cell, as far as both can tell, and settings in
//! files and in the environment.

use super::maker::{Authority, port, sample};
use crate::support::{PROGRAM, free_port, kill, text};
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};

#[test]
fn a_gateway_reaches_its_cell_by_certificates() {
    let authority = Authority::new();
    let home = authority.home.path();
    let server = authority.issue("server", "backend");
    let settings = home.join("serve.toml");
    std::fs::write(&settings, format!("certs = \"{server}\"\n")).unwrap();
    let cell = crate::support::Cell::serve(
        home,
        &["--memory", "64MiB", "--config", settings.to_str().unwrap()],
    );
    super::maker::hide(home);
    let (metrics, memcached) = (free_port(), free_port());
    let settings = home.join("gateway.toml");
    let text_of = format!(
        "cell = \"127.0.0.1:{}\"\ncerts = \"{}\"\nmemcached = \"127.0.0.1:{memcached}\"\n\
         metrics = \"127.0.0.1:{metrics}\"\n",
        port(&cell),
        authority.issue("gateway", "client"),
    );
    std::fs::write(&settings, text_of).unwrap();
    let gateway = Command::new(PROGRAM)
        .args(["gateway", "--config", settings.to_str().unwrap()])
        .env_remove("TREFOIL_CELL")
        .env_remove("TREFOIL_CERTS")
        .stdout(Stdio::piped())
        .spawn();
    let mut gateway = Ending(gateway.unwrap());
    let mut ready = String::new();
    let mut said = BufReader::new(gateway.0.stdout.take().unwrap());
    said.read_line(&mut ready).unwrap();
    assert!(ready.starts_with("ready "), "{ready}");
    let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", memcached)).unwrap());
    let mut ask = |request: &str| {
        stream.get_mut().write_all(request.as_bytes()).unwrap();
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        line
    };
    assert_eq!(ask("set k 0 0 1\r\nv\r\n"), "STORED\r\n");
    // A client's certificate flushes nothing, and the gateway says why.
    let flushed = ask("flush_all\r\n");
    assert!(flushed.starts_with("SERVER_ERROR"), "{flushed}");
    assert_eq!(ask("get k\r\n"), "VALUE k 0 1\r\n");
    assert!(sample(metrics, "trefoil_certificate_left_seconds") > 7_000_000.0);
    assert_eq!(sample(metrics, "trefoil_certificate_refused"), 0.0);
    drop(gateway);

    // By the environment.
    let output = Command::new(PROGRAM)
        .args(["get", "k"])
        .env("TREFOIL_CELL", format!("localhost:{}", port(&cell)))
        .env("TREFOIL_CERTS", authority.issue("app", "client"))
        .output()
        .unwrap();
    assert_eq!(text(&output.stdout), "v", "{}", text(&output.stderr));
}

/// A process that ends with the test.
struct Ending(Child);

impl Drop for Ending {
    fn drop(&mut self) {
        kill(self.0.id(), "TERM");
        let _ = self.0.wait();
    }
}
