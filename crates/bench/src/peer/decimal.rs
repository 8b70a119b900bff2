//! Decimal numbers in both text protocols, without an allocation.

pub(super) fn decimal(digits: &[u8]) -> Option<usize> {
    std::str::from_utf8(digits).ok()?.parse().ok()
}

pub(super) fn push_decimal(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(spell(&mut [0; 20], number));
}

pub(super) fn spell(buffer: &mut [u8; 20], mut number: u64) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return &buffer[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_spelled_and_read() {
        for number in [0, 7, 10, 1024, u64::MAX] {
            let mut spelled = Vec::new();
            push_decimal(&mut spelled, number);
            assert_eq!(spelled, number.to_string().as_bytes());
        }
        assert_eq!(decimal(b"1024"), Some(1024));
        assert_eq!(decimal(b"-1"), None);
        assert_eq!(decimal(b""), None);
    }
}
