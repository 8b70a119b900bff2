//! Another user of this host comes in through no door. Needs root, to become
//! somebody else; says so where it cannot.

use crate::support::{Cell, PROGRAM, free_port, parse, text};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// An account that is on every Linux system and owns nothing.
pub(crate) const NOBODY: u32 = 65534;

/// Where both users can look, with the program in it.
pub(crate) struct Common {
    dir: TempDir,
    pub(crate) program: PathBuf,
}

impl Common {
    /// Nothing if this process cannot become somebody else.
    pub(crate) fn new() -> Option<Self> {
        let is_root = rustix::process::geteuid().is_root();
        if !is_root || Command::new("setpriv").arg("--version").output().is_err() {
            eprintln!("skipped: only root, with setpriv, can try another account");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        open(dir.path(), 0o755);
        let program = dir.path().join("trefoil");
        std::fs::copy(PROGRAM, &program).unwrap();
        Some(Common { dir, program })
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).display().to_string()
    }

    /// A program with another user's rights.
    pub(crate) fn command_of(user: u32, program: &Path, args: &[&str]) -> Command {
        let id = user.to_string();
        let mut command = Command::new("setpriv");
        command
            .args(["--reuid", &id, "--regid", &id, "--clear-groups", "--"])
            .arg(program)
            .args(args)
            .current_dir("/")
            .env_remove("TREFOIL_CELL")
            .env_remove("XDG_RUNTIME_DIR");
        command
    }

    /// Runs a program as nobody.
    pub(crate) fn run(&self, program: &Path, args: &[&str], token: Option<&Path>) -> Output {
        let mut command = Common::command_of(NOBODY, program, args);
        if let Some(token) = token {
            command.env("TREFOIL_TOKEN_FILE", token);
        }
        command.output().unwrap()
    }

    /// Every command that reads, writes, lists, flushes or resizes is refused.
    fn is_kept_out(&self, address: &str, token: Option<&Path>, reason: &str) {
        let commands: [&[&str]; 8] = [
            &["get", "k"],
            &["set", "k", "theirs"],
            &["erase", "k"],
            &["cas", "k", "theirs", "--version", &"0".repeat(32)],
            &["cell", "status"],
            &["cell", "flush"],
            &["cell", "memory", "--limit", "40MiB"],
            &["top", "--once"],
        ];
        for command in commands {
            let args = [command, &["--cell", address]].concat();
            let output = self.run(&self.program, &args, token);
            let message = text(&output.stderr);
            assert!(
                !output.status.success(),
                "{args:?}: {}",
                text(&output.stdout)
            );
            assert!(message.contains(reason), "{args:?}: {message}");
        }
    }
}

fn open(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

/// What the cell's own user finds.
fn is_untouched(cell: &Cell) {
    assert_eq!(cell.run(&["get", "k"]).stdout, b"ours");
    let status = cell.json(&["cell", "status", "--json"]);
    assert_eq!(status["backends"][0]["memory_limit_bytes"], 64 << 20);
    assert_eq!(status["config_id"], 1, "nobody has flushed");
}

#[test]
fn another_user_comes_in_through_no_door() {
    let Some(common) = Common::new() else {
        return;
    };
    let listen = format!("127.0.0.1:{}", free_port());
    let socket = common.path("serve.sock");
    let args = ["--listen", &listen, "--memory", "64MiB"];
    let cell = Cell::serve(common.dir.path(), &args);
    assert!(cell.run(&["set", "k", "ours"]).status.success());

    let own_only = "answers its own user only";
    common.is_kept_out(&listen, None, own_only);
    // With a token that is not this server's, too.
    let token = PathBuf::from(common.path("token"));
    std::fs::write(&token, "0".repeat(64)).unwrap();
    open(&token, 0o600);
    std::os::unix::fs::chown(&token, Some(NOBODY), Some(NOBODY)).unwrap();
    common.is_kept_out(&listen, Some(&token), "the token is another server's");

    let unix = format!("unix:{socket}");
    let fabric = format!("{socket}.fabric");
    common.is_kept_out(&unix, None, "");
    // Whatever the files' modes say: the kernel says who connects.
    open(Path::new(&socket), 0o666);
    open(Path::new(&fabric), 0o666);
    common.is_kept_out(&unix, None, own_only);
    let refused = connect_to_fabric(&common, &fabric);
    assert!(refused.contains("status 4"), "{refused}");

    // The server's descriptors, memory objects among them, and its memory.
    let pid = cell.pids[0];
    for file in ["fd", "map_files", "mem", "environ"] {
        let path = format!("/proc/{pid}/{file}");
        let looked = common.run(Path::new("/bin/ls"), &[&path, "-l"], None);
        let read = common.run(Path::new("/bin/cat"), &[&path], None);
        let shown = text(&looked.stdout);
        assert!(!shown.contains("memfd"), "{file}: {shown}");
        assert!(!read.status.success(), "{file} can be read");
    }
    is_untouched(&cell);
}

/// Says hello to the fabric's socket as nobody; the status of the reply.
fn connect_to_fabric(common: &Common, path: &str) -> String {
    let script = format!(
        "import socket\n\
         s = socket.socket(socket.AF_UNIX)\n\
         s.connect({path:?})\n\
         try: s.sendall(b'TREFHELO' + bytes([2, 0, 1, 0]) + bytes(20))\n\
         except BrokenPipeError: pass\n\
         data, fds, _, _ = socket.recv_fds(s, 96, 4)\n\
         print('status', data[10], 'descriptors', len(fds))\n"
    );
    let python = Path::new("/usr/bin/python3");
    if !python.exists() {
        eprintln!("skipped: no /usr/bin/python3 to greet with");
        return "status 4".to_owned();
    }
    let output = common.run(python, &["-c", &script], None);
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(!said.contains("descriptors 3"), "{said}");
    said
}

#[test]
fn a_user_who_is_let_in_comes_in() {
    let Some(common) = Common::new() else {
        return;
    };
    let socket = common.path("serve.sock");
    let args = ["--listen", "off", "--allow-user", "65534"];
    let args = [&args[..], &["--memory", "64MiB"]].concat();
    let cell = Cell::serve(common.dir.path(), &args);
    let unix = format!("unix:{socket}");
    let set = common.run(
        &common.program,
        &["set", "k", "theirs", "--cell", &unix],
        None,
    );
    assert!(set.status.success(), "{}", text(&set.stderr));
    let get = common.run(&common.program, &["get", "k", "--cell", &unix], None);
    assert_eq!(get.stdout, b"theirs", "{}", text(&get.stderr));
    // By shared memory, not by something slower.
    assert!(
        !text(&get.stderr).contains("slower"),
        "{}",
        text(&get.stderr)
    );
    assert_eq!(cell.run(&["get", "k"]).stdout, b"theirs");
}

#[test]
fn a_user_who_is_let_in_comes_into_a_cell_of_processes() {
    let Some(common) = Common::new() else {
        return;
    };
    let dir = common.dir.path().join("cell");
    let path = dir.display().to_string();
    let options = ["--memory", "64MiB", "--mode", "R=1"];
    let cell = Cell::up(&dir, &options);
    assert!(cell.run(&["set", "k", "ours"]).status.success());
    let get = ["get", "k", "--cell", &path];
    let refused = common.run(&common.program, &get, None);
    let message = text(&refused.stderr);
    assert!(message.contains("Permission denied"), "{message}");
    assert!(!message.contains("cell up"), "{message}");
    assert_eq!(cell.stop(), 0);

    let cell = Cell::up(&dir, &[&options[..], &["--allow-user", "65534"]].concat());
    let set = ["set", "k", "theirs", "--cell", &path];
    let set = common.run(&common.program, &set, None);
    assert!(set.status.success(), "{}", text(&set.stderr));
    let got = common.run(&common.program, &get, None);
    assert_eq!(got.stdout, b"theirs", "{}", text(&got.stderr));
    // A flush writes the configuration anew.
    assert!(cell.run(&["cell", "flush"]).status.success());
    let mode = |name: &str| dir.join(name).metadata().unwrap().permissions().mode() & 0o777;
    let modes = ["", "cell.json", "cell.lock", "backend-0.lock"].map(mode);
    assert_eq!(modes, [0o711, 0o644, 0o600, 0o600]);
    assert_eq!(cell.stop(), 0);

    // And out again.
    let _cell = Cell::up(&dir, &options);
    assert_eq!(mode("cell.json"), 0o600);
}

/// Neither of the two is root, as where a service has an account of its own.
#[test]
fn a_user_who_is_let_in_comes_into_the_cell_of_an_ordinary_user() {
    const GUEST: u32 = 65_533;
    let Some(common) = Common::new() else {
        return;
    };
    let chown = |path: &Path| std::os::unix::fs::chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
    let begin = |dir: &Path| {
        let dir = dir.display().to_string();
        let up = ["cell", "up", "--dir", &dir, "--mode", "R=1"];
        let more = ["--memory", "64MiB", "--allow-user", "65533"];
        let args = [&up[..], &more].concat();
        Cell::start_by(&mut Common::command_of(NOBODY, &common.program, &args))
    };
    let as_guest = |args: &[&str], dir: &Path| {
        let address = dir.display().to_string();
        let args = [args, &["--cell", &address]].concat();
        Common::command_of(GUEST, &common.program, &args)
            .output()
            .unwrap()
    };
    let dir = common.dir.path().join("cell");
    std::fs::create_dir(&dir).unwrap();
    chown(&dir);
    let cell = begin(&dir);
    let set = as_guest(&["set", "k", "theirs"], &dir);
    assert!(set.status.success(), "{}", text(&set.stderr));
    let got = as_guest(&["get", "k"], &dir);
    assert_eq!(got.stdout, b"theirs", "{}", text(&got.stderr));
    assert_eq!(cell.run(&["get", "k"]).stdout, b"theirs");
    let status = parse(&as_guest(&["cell", "status", "--json"], &dir));
    let backend = &status["backends"][0];
    assert_eq!(backend["carrier"], "shared", "{status:#}");

    // By a link, which may be the guest's or root's, and not the owner's where
    // anybody can make one.
    let common_place = common.dir.path().join("common");
    std::fs::create_dir(&common_place).unwrap();
    open(&common_place, 0o1777);
    let link_of = |user: u32, name: &str| {
        let link = common_place.join(name);
        std::os::unix::fs::symlink(&dir, &link).unwrap();
        std::os::unix::fs::lchown(&link, Some(user), Some(user)).unwrap();
        link
    };
    for user in [0, GUEST] {
        let got = as_guest(&["get", "k"], &link_of(user, &format!("of-{user}")));
        assert_eq!(got.stdout, b"theirs", "{}", text(&got.stderr));
    }
    let planted = link_of(NOBODY, "planted");
    let refused = as_guest(&["get", "k"], &planted);
    let message = text(&refused.stderr);
    assert!(
        !refused.status.success() && message.contains("belongs to user 65534"),
        "{message}"
    );
    // To the socket of a cell, likewise; it is reached by its own name.
    let socket = dir.join("backend-0.sock");
    let found = as_guest(&["get", "k"], &socket);
    assert_eq!(found.stdout, b"theirs", "{}", text(&found.stderr));
    let refused = as_guest(&["get", "k"], &planted.join("backend-0.sock"));
    let message = text(&refused.stderr);
    assert!(message.contains("belongs to user 65534"), "{message}");
    drop(cell);

    // Where anybody can make a directory, it may be a trap.
    let open_place = common.dir.path().join("open");
    std::fs::create_dir(&open_place).unwrap();
    open(&open_place, 0o1777);
    let trap = open_place.join("cell");
    std::fs::create_dir(&trap).unwrap();
    chown(&trap);
    let _cell = begin(&trap);
    let refused = as_guest(&["get", "k"], &trap);
    let message = text(&refused.stderr);
    assert!(message.contains("belongs to user 65534"), "{message}");
}
