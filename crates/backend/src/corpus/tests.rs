use super::*;

fn read(format: CorpusFormat, text: &[u8]) -> Result<Vec<(String, String, u64)>, CorpusError> {
    let mut reader = CorpusReader::new(text, format, 100)?;
    let (mut item, mut all) = (Item::default(), Vec::new());
    while reader.next(&mut item)? {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        all.push((text(&item.key), text(&item.value), item.line));
    }
    Ok(all)
}

fn fails(format: CorpusFormat, text: &[u8], hint: &str) {
    let error = read(format, text).unwrap_err().to_string();
    assert!(error.contains(hint), "{hint:?}: {error}");
}

#[test]
fn json_lines_are_read_with_their_numbers() {
    let text = br#"{"key":"a","value":"1"}

{"value_base64":"AAE=","key_base64":"Yg=="}
{"key":"\u00e4\n","value":""}"#;
    let items = read(CorpusFormat::JsonLines, text).unwrap();
    let expected = [("a", "1", 1), ("b", "\0\u{1}", 3), ("ä\n", "", 4)];
    assert_eq!(items, expected.map(|(k, v, l)| (k.into(), v.into(), l)));
}

#[test]
fn csv_is_read_with_its_line_numbers() {
    let text = b"note,value,key\nx,1,a\n\ny,\"two\nlines, \"\"quoted\"\"\",b\nz,\xff,c\n";
    let items = read(CorpusFormat::Csv, text).unwrap();
    let keys: Vec<_> = items
        .iter()
        .map(|(key, _, line)| (&key[..], *line))
        .collect();
    assert_eq!(keys[..2], [("a", 2), ("b", 4)]);
    assert_eq!(keys[2], ("c", 6));
    assert_eq!(items[1].1, "two\nlines, \"quoted\"");
    let coded = read(
        CorpusFormat::Csv,
        b"key_base64,value_base64\r\nYQ==,Yg==\r\n",
    )
    .unwrap();
    assert_eq!(coded, [("a".into(), "b".into(), 2)]);
}

#[test]
fn mistakes_in_json_lines_carry_their_line() {
    let ok = "{\"key\":\"a\",\"value\":\"1\"}\n";
    let long = format!("{{\"key\":\"k\",\"value\":\"{}\"}}", "v".repeat(101));
    let cases: [(&str, &str); 10] = [
        ("{\"key\":\"a\",\"value\":", "line 2: EOF while parsing"),
        ("nonsense", "line 2: expected"),
        (
            "{\"key\":\"a\",\"valeu\":\"1\"}",
            "line 2: unknown field `valeu`",
        ),
        ("{\"key\":1,\"value\":\"1\"}", "line 2: invalid type"),
        (
            "{\"value\":\"1\"}",
            "line 2: neither \"key\" nor \"key_base64\"",
        ),
        ("{\"key\":\"a\"}", "line 2: neither \"value\""),
        (
            "{\"key\":\"a\",\"key_base64\":\"YQ==\",\"value\":\"\"}",
            "line 2: both \"key\"",
        ),
        (
            "{\"key_base64\":\"?\",\"value\":\"\"}",
            "line 2: \"key_base64\" is not base64",
        ),
        ("{\"key\":\"\",\"value\":\"\"}", "line 2: the key is empty"),
        (
            &long,
            "line 2: the value has 101 bytes, the cell allows 100",
        ),
    ];
    for (line, hint) in cases {
        fails(
            CorpusFormat::JsonLines,
            format!("{ok}{line}").as_bytes(),
            hint,
        );
    }
    let key = format!(
        "{{\"key\":\"{}\",\"value\":\"\"}}",
        "k".repeat(KEY_LEN_MAX + 1)
    );
    fails(
        CorpusFormat::JsonLines,
        key.as_bytes(),
        "line 1: the key has 65537 bytes",
    );
    fails(
        CorpusFormat::JsonLines,
        b"{\"key\":\"\xff\",\"value\":\"\"}",
        "line 1:",
    );
}

#[test]
fn mistakes_in_csv_carry_their_line() {
    fails(CorpusFormat::Csv, b"", "no column \"key\"");
    fails(
        CorpusFormat::Csv,
        b"key,vlaue\na,1\n",
        "no column \"value\"",
    );
    fails(CorpusFormat::Csv, b"key,value,key_base64\n", "both \"key\"");
    fails(
        CorpusFormat::Csv,
        b"key,value\na,1\nb\n",
        "line 3: the row has 1 fields",
    );
    fails(
        CorpusFormat::Csv,
        b"key,value\na,1\n,2\n",
        "line 3: the key is empty",
    );
    fails(
        CorpusFormat::Csv,
        b"key,value_base64\na,!\n",
        "line 2: \"value_base64\"",
    );
}

/// Neither a file of one line nor an open quote is read into memory whole.
#[test]
fn endless_items_are_refused() {
    let endless = |head: &'static [u8]| head.chain(std::io::repeat(b'x').take(1 << 40));
    let read = |format, head| -> CorpusError {
        let mut item = Item::default();
        match CorpusReader::new(endless(head), format, 100) {
            Err(error) => error,
            Ok(mut reader) => loop {
                match reader.next(&mut item) {
                    Ok(true) => {}
                    Ok(false) => panic!("ended"),
                    Err(error) => return error,
                }
            },
        }
    };
    for (format, head) in [
        (CorpusFormat::JsonLines, &b"{\"key\":\""[..]),
        (CorpusFormat::Csv, b"key,value\na,\""),
        (CorpusFormat::Csv, b""),
    ] {
        let error = read(format, head).to_string();
        assert!(error.contains("the item takes more than"), "{error}");
    }
}

#[test]
fn the_ending_tells_the_format() {
    assert_eq!(CorpusFormat::of(Path::new("a.CSV")), CorpusFormat::Csv);
    for name in ["a.jsonl", "a.json", "a", "csv"] {
        assert_eq!(CorpusFormat::of(Path::new(name)), CorpusFormat::JsonLines);
    }
}
