//! What the kernel says of waiting for CPUs in a window, encoded after its accounts: the pressure
//! of the host, and how CPU limits held cgroups back.
//!
//! Numbers are varints. [`MARK`] comes first, then whether pressure is known with its three times,
//! then for each account 0 if its throttling is not known, or one more than its time, followed by
//! the limit if it was throttled. If nothing is known, nothing is written, as by daemons that did
//! not look. Decoding treats the bytes as untrusted.

use super::{DecodeError, get, put};
use profile::{Account, Pressure};

/// Tells this part from the times of the samples, which start with how many were dropped: no window
/// drops so many. So records of daemons before it are read as they were written.
const MARK: u64 = u64::MAX;

/// Appends what is known.
pub(super) fn encode(out: &mut Vec<u8>, pressure: Option<Pressure>, accounts: &[Account]) {
    let throttling = accounts.iter().any(|of| of.throttled_ns.is_some());
    if pressure.is_none() && !throttling {
        return;
    }
    put(out, MARK);
    put(out, u64::from(pressure.is_some()));
    if let Some(pressure) = pressure {
        put(out, pressure.cpu_ns);
        put(out, pressure.memory_ns);
        put(out, pressure.io_ns);
    }
    for account in accounts {
        put(
            out,
            account.throttled_ns.map_or(0, |ns| ns.saturating_add(1)),
        );
        if account.throttled_ns > Some(0) {
            put(out, account.limit_millicores);
        }
    }
}

/// The pressure of a window, and the throttling of its accounts, where they follow; `rest` is then
/// what comes after them.
///
/// # Errors
/// When the bytes make no sense.
pub(super) fn decode(
    rest: &mut &[u8],
    accounts: &mut [Account],
) -> Result<Option<Pressure>, DecodeError> {
    let mut after = *rest;
    if after.is_empty() || get(&mut after)? != MARK {
        return Ok(None);
    }
    let pressure = match get(&mut after)? {
        0 => None,
        _ => Some(Pressure {
            cpu_ns: get(&mut after)?,
            memory_ns: get(&mut after)?,
            io_ns: get(&mut after)?,
        }),
    };
    for account in accounts {
        account.throttled_ns = get(&mut after)?.checked_sub(1);
        if account.throttled_ns > Some(0) {
            account.limit_millicores = get(&mut after)?;
        }
    }
    *rest = after;
    Ok(pressure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn account(throttled_ns: Option<u64>) -> Account {
        Account {
            throttled_ns,
            limit_millicores: throttled_ns.map_or(0, |ns| ns / 7),
            ..Account::default()
        }
    }

    proptest! {
        #[test]
        fn what_is_known_comes_back_and_the_rest_is_left(
            pressure in prop::option::of(any::<(u64, u64, u64)>()),
            throttled in prop::collection::vec(prop::option::of(0..u64::MAX), 0..9),
            behind in prop::collection::vec(0u8..0x80, 0..4),
        ) {
            let pressure = pressure.map(|(cpu_ns, memory_ns, io_ns)| Pressure {
                cpu_ns,
                memory_ns,
                io_ns,
            });
            let accounts: Vec<Account> = throttled.into_iter().map(account).collect();
            let mut bytes = Vec::new();
            encode(&mut bytes, pressure, &accounts);
            bytes.extend(&behind);
            let mut rest = &bytes[..];
            let mut found = vec![Account::default(); accounts.len()];
            prop_assert_eq!(decode(&mut rest, &mut found), Ok(pressure));
            prop_assert_eq!(found, accounts);
            prop_assert_eq!(rest, &behind[..]);
        }
    }

    #[test]
    fn records_of_daemons_that_did_not_look_say_nothing() {
        // The times of a window follow its accounts at once: two were dropped, none are there.
        let mut rest = &[2, 0][..];
        let mut accounts = [Account::default()];
        assert_eq!(decode(&mut rest, &mut accounts), Ok(None));
        assert_eq!((rest, accounts[0].throttled_ns), (&[2, 0][..], None));
    }

    #[test]
    fn nothing_known_takes_no_byte() {
        let mut bytes = Vec::new();
        encode(&mut bytes, None, &[Account::default()]);
        assert!(bytes.is_empty());
    }
}
