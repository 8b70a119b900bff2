//! What of a cell on several hosts is on this one: which backends, where they listen, and
//! what they speak with the others.

use crate::args::{HostArgs, Plaintext};
use crate::failure::Failure;
use crate::serve;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use trefoil_backend::{ListenError, ListenOptions};
use trefoil_cell::RpcAddress;
use trefoil_tls::Tls;

/// See the module.
#[derive(Clone)]
pub(super) struct Spread {
    /// By number.
    pub(super) sites: BTreeMap<u32, Site>,
    /// What is spoken with other hosts, if it is TLS.
    pub(super) tls: Option<Tls>,
    plaintext: Vec<Plaintext>,
    token_file: Option<PathBuf>,
}

/// Where a backend is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Site {
    pub(super) listen: SocketAddr,
    /// As others reach it.
    pub(super) advertised: RpcAddress,
}

impl Spread {
    /// What the options say of these backends of this host; nothing if they say nothing.
    pub(super) fn of(args: &HostArgs, numbers: &[u32]) -> Result<Option<Self>, Failure> {
        let Some(listen) = &args.listen else {
            return match (numbers, &args.advertise, &args.certs, &args.token_file) {
                ([], None, None, None) if args.plaintext.is_empty() => Ok(None),
                _ => Err(Failure::Usage(
                    "give --listen HOST:PORT: the address of this host by which the cell's other hosts and its clients reach it".into(),
                )),
            };
        };
        let first = serve::tcp_address("--listen", listen)?;
        let advertised = match &args.advertise {
            None => RpcAddress::Tcp {
                host: first.ip().to_string(),
                port: first.port(),
            },
            Some(text) => text
                .parse()
                .map_err(|error| Failure::Usage(format!("--advertise {text}: {error}")))?,
        };
        check_reachable(&advertised)?;
        if first.port() == 0 {
            return Err(Failure::Usage(format!(
                "--listen {listen}: give a port: the other hosts have to know it"
            )));
        }
        check_open(args, first)?;
        let mut sites = BTreeMap::new();
        for (index, &number) in (0u16..).zip(numbers) {
            let site = site(first, &advertised, index)?;
            if sites.insert(number, site).is_some() {
                return Err(Failure::Usage(format!("--here: {number} is given twice")));
            }
        }
        Ok(Some(Spread {
            sites,
            tls: serve::server_tls(args.certs.as_deref())?,
            plaintext: args.plaintext.clone(),
            token_file: args.token_file.clone(),
        }))
    }

    /// Has this process show the token to the other hosts, as its backends do.
    pub(super) fn use_token(&self) {
        if let Some(file) = &self.token_file {
            trefoil_cell::use_token_file(file);
        }
    }

    /// Where the backend `number` listens for others, over TCP and for metrics, beside what
    /// `options` say.
    pub(super) fn listen(&self, number: u32, options: ListenOptions) -> ListenOptions {
        let site = self.sites.get(&number);
        ListenOptions {
            tcp: site.map(|site| site.listen),
            tls: self.tls.clone(),
            plaintext_rpc: self.plaintext.contains(&Plaintext::Rpc),
            plaintext_metrics: self.plaintext.contains(&Plaintext::Metrics),
            token_file: self.token_file.clone(),
            ..options
        }
    }
}

fn site(first: SocketAddr, advertised: &RpcAddress, index: u16) -> Result<Site, Failure> {
    let none = || Failure::Usage("--listen: no port is left for all backends here".to_owned());
    let next = |port: u16| port.checked_add(index).ok_or_else(none);
    let listen = SocketAddr::new(first.ip(), next(first.port())?);
    let advertised = match advertised {
        RpcAddress::Tcp { host, port } => RpcAddress::Tcp {
            host: host.clone(),
            port: next(*port)?,
        },
        unix => unix.clone(),
    };
    Ok(Site { listen, advertised })
}

/// Refuses an address that leads others nowhere.
fn check_reachable(advertised: &RpcAddress) -> Result<(), Failure> {
    let RpcAddress::Tcp { host, .. } = advertised else {
        return Err(Failure::Usage(format!(
            "{advertised} is of this host alone: give HOST:PORT, by which other hosts reach it"
        )));
    };
    match host.parse::<std::net::IpAddr>() {
        Ok(ip) if ip.is_unspecified() => Err(Failure::Usage(format!(
            "other hosts cannot reach {advertised}: give --advertise HOST:PORT, the name or address by which they reach this host"
        ))),
        _ => Ok(()),
    }
}

/// Off loopback hosts know each other by certificates, or, where the network is trusted, by
/// a token that all of them have.
fn check_open(args: &HostArgs, address: SocketAddr) -> Result<(), Failure> {
    let is_plaintext = args.plaintext.contains(&Plaintext::Rpc);
    if args.certs.is_some() || address.ip().is_loopback() {
        return Ok(());
    }
    if !is_plaintext {
        let what = "rpc";
        return Err(Failure::of(ListenError::OffLoopback { address, what }));
    }
    match args.token_file {
        Some(_) => Ok(()),
        None => Err(Failure::Usage(
            "without certificates the cell's hosts know each other by a token: give --token-file FILE, with the same token on every host".into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(listen: &str) -> HostArgs {
        HostArgs {
            listen: Some(listen.to_owned()),
            plaintext: vec![Plaintext::Rpc],
            token_file: Some("/token".into()),
            ..HostArgs::default()
        }
    }

    fn refused(args: &HostArgs, numbers: &[u32]) -> String {
        match Spread::of(args, numbers) {
            Err(failure) => failure.to_string(),
            Ok(_) => panic!("{args:?} was taken"),
        }
    }

    #[test]
    fn each_backend_here_has_a_port_of_its_own() {
        let spread = Spread::of(&args("10.0.0.1:7411"), &[0, 3])
            .unwrap()
            .unwrap();
        let sites = spread.sites.iter();
        let sites: Vec<_> = sites.map(|(n, s)| (*n, s.advertised.to_string())).collect();
        let expected = [(0, "10.0.0.1:7411"), (3, "10.0.0.1:7412")];
        assert_eq!(sites, expected.map(|(n, at)| (n, at.to_owned())));
        let mut by_name = args("0.0.0.0:7411");
        by_name.advertise = Some("db1:8000".to_owned());
        let spread = Spread::of(&by_name, &[1]).unwrap().unwrap();
        assert_eq!(spread.sites[&1].listen.to_string(), "0.0.0.0:7411");
        assert_eq!(spread.sites[&1].advertised.to_string(), "db1:8000");
    }

    #[test]
    fn what_others_cannot_use_is_refused() {
        assert!(Spread::of(&HostArgs::default(), &[]).unwrap().is_none());
        let said = refused(&HostArgs::default(), &[0]);
        assert!(said.contains("--listen HOST:PORT"), "{said}");
        let said = refused(&args("0.0.0.0:7411"), &[0]);
        assert!(said.contains("--advertise"), "{said}");
        let said = refused(&args("10.0.0.1:0"), &[0]);
        assert!(said.contains("give a port"), "{said}");
        let said = refused(&args("10.0.0.1:65535"), &[0, 1]);
        assert!(said.contains("no port is left"), "{said}");
        let said = refused(&args("10.0.0.1:7411"), &[1, 1]);
        assert!(said.contains("twice"), "{said}");
        let mut open = args("10.0.0.1:7411");
        open.plaintext.clear();
        let said = refused(&open, &[0]);
        assert!(said.contains("--certs DIR"), "{said}");
        let mut strange = args("10.0.0.1:7411");
        strange.token_file = None;
        let said = refused(&strange, &[0]);
        assert!(said.contains("--token-file"), "{said}");
    }
}
