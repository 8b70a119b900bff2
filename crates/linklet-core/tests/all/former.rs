//! Frames of version 2.0, as a release of that time wrote them: they are read, and what is
//! said to a server of that time is written like this.

use bytes::Bytes;
use trefoil_linklet_core::{
    Chunk, ChunkKind, Claim, ClaimAnswer, CopyOrder, DecodeError, Entry, Frame, Message, Operation,
    Pass, Wire,
};
use trefoil_sharder::{AssignmentVersion, KeyPoint, ServerId, Slice};

/// A frame on each line, numbered from 0; what has arrived is 2.
const RECORDED: &str = include_str!("frames-2.0.txt");

/// One of each kind, and of each form that it has.
fn messages() -> Vec<Option<Message>> {
    let slices = vec![
        Slice::spanning(KeyPoint(1), KeyPoint(2)),
        Slice::spanning(KeyPoint(9), KeyPoint(u64::MAX)),
    ];
    let version = AssignmentVersion {
        incarnation: 3,
        generation: 7,
    };
    let key = Bytes::from_static(b"key");
    let entries = vec![
        Entry {
            point: KeyPoint(9),
            key: key.clone(),
            version: 5,
            value: Some(Bytes::from_static(b"value")),
        },
        Entry {
            point: KeyPoint(10),
            key: key.clone(),
            version: 6,
            value: None,
        },
    ];
    let keys = vec![(KeyPoint(9), key.clone())];
    let points = vec![KeyPoint(9), KeyPoint(10)];
    let chunk = |kind| {
        Message::Chunk(Chunk {
            id: 21,
            kind,
            ranges: slices.clone(),
            entries: entries.clone(),
            holders: vec![(ServerId(4), slices.clone())],
            unsettled: keys.clone(),
        })
    };
    let copy = |order| Message::Copy {
        id: 22,
        token: version,
        order,
    };
    let apply = |operation| {
        copy(CopyOrder::Apply {
            point: KeyPoint(9),
            key: key.clone(),
            operation,
        })
    };
    let said = vec![
        Message::Claim(Claim {
            id: 11,
            version,
            ranges: slices.clone(),
            alive: vec![ServerId(1), ServerId(4)],
        }),
        Message::ClaimAnswer(ClaimAnswer {
            claim: 11,
            held: slices.clone(),
            in_transit: slices[..1].to_vec(),
            refused: slices[1..].to_vec(),
            newest: Some(version),
            copies: vec![(slices[0], version)],
        }),
        Message::Gone {
            claim: 11,
            ranges: slices.clone(),
        },
        Message::Pull {
            claim: 11,
            points: points.clone(),
        },
        Message::Recover {
            claim: 11,
            ranges: slices.clone(),
        },
        chunk(ChunkKind::Authority),
        chunk(ChunkKind::Recovered),
        Message::Taken { chunk: 21 },
        Message::NotTaken { chunk: 21 },
        copy(CopyOrder::Fill {
            ranges: slices.clone(),
            entries: entries.clone(),
        }),
        copy(CopyOrder::Attach {
            ranges: slices.clone(),
        }),
        copy(CopyOrder::Exclude {
            ranges: slices.clone(),
        }),
        apply(Operation::Put {
            version: 8,
            value: Bytes::from_static(b"new"),
        }),
        apply(Operation::Remove),
        Message::CopyDone { id: 22 },
        Message::CopyFailed {
            id: 22,
            points,
            kept: true,
            no_room: false,
        },
        Message::CopyRefused {
            id: 22,
            newest: version,
            ranges: slices.clone(),
        },
        Message::Attached {
            id: 22,
            missing: slices,
            unsettled: keys,
        },
        Message::Settled { id: 22 },
    ];
    [None]
        .into_iter()
        .chain(said.into_iter().map(Some))
        .collect()
}

fn recorded() -> Vec<Bytes> {
    let byte = |hex: &[u8]| {
        let hex = std::str::from_utf8(hex).expect("hexadecimal digits");
        u8::from_str_radix(hex, 16).expect("hexadecimal digits")
    };
    let frame = |line: &str| line.as_bytes().chunks(2).map(byte).collect::<Bytes>();
    RECORDED.lines().map(frame).collect()
}

#[test]
fn frames_of_before_versions_were_said_are_what_they_were() {
    let (recorded, messages) = (recorded(), messages());
    assert_eq!(recorded.len(), messages.len());
    for (at, (bytes, message)) in recorded.into_iter().zip(messages).enumerate() {
        if let Some(message) = &message {
            assert_eq!(message.since(), Wire::UNSAID, "{message:?}");
        }
        let frame = Frame {
            sequence: at as u64,
            confirmed: 2,
            message,
        };
        assert_eq!(Frame::decode(bytes.clone()), Ok(frame.clone()));
        assert_eq!(frame.encode(), bytes, "{frame:?}");
        // Of another first number nothing is read.
        let mut other = bytes.to_vec();
        other[0] = 3;
        assert_eq!(Frame::decode(other.into()), Err(DecodeError::Format(3)));
    }
}

#[test]
fn what_is_new_is_not_for_who_speaks_an_earlier_version() {
    let in_part = Message::TakenInPart {
        chunk: 21,
        unreadable: Vec::new(),
        no_room: vec![KeyPoint(9)],
    };
    let failed = Message::CopyFailed {
        id: 22,
        points: vec![KeyPoint(9)],
        kept: true,
        no_room: true,
    };
    for message in [in_part, failed] {
        assert_eq!(message.since(), Wire { major: 2, minor: 1 });
    }
    let pass = Message::Pass(Pass {
        from: ServerId(1),
        to: ServerId(2),
        hears: false,
        asks: true,
        frame: Bytes::new(),
    });
    assert_eq!(pass.since(), Wire { major: 2, minor: 2 });
}
