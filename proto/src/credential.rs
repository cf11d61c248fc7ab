//! Credentials as strings: `fpj1_…` lets a host join a fleet, `fpu1_…` identifies a person at its
//! collector.
//!
//! A string contains its number, the secret, and the SHA-256 of the public key of the fleet's
//! authority, so its user can verify the collector from the first connection on. A checksum
//! distinguishes a string that was cut or mistyped from one that is wrong. Format: the prefix, then
//! base64url of 8, 20, 32 and 4 bytes.

use data_encoding::BASE64URL_NOPAD;
use std::fmt;

/// Bytes of a number.
pub const ID_BYTES: usize = 8;

/// Bytes of a secret: 160 random bits, which nobody guesses however often.
pub const SECRET_BYTES: usize = 20;

/// Bytes of the SHA-256 of a public key.
pub const KEY_HASH_BYTES: usize = 32;

const CRC_BYTES: usize = 4;
const BYTES: usize = ID_BYTES + SECRET_BYTES + KEY_HASH_BYTES + CRC_BYTES;

/// Purpose of a string. Scanners for secrets look for the prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Use {
    /// An invitation: a host joins the fleet.
    Join,
    /// A token: somebody asks the collector.
    Ask,
}

impl Use {
    const fn prefix(self) -> &'static str {
        match self {
            Use::Join => "fpj1_",
            Use::Ask => "fpu1_",
        }
    }
}

impl fmt::Display for Use {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Use::Join => "invitation",
            Use::Ask => "token",
        })
    }
}

/// The string of an invitation or of a token, taken apart.
#[derive(Clone, PartialEq, Eq)]
pub struct Credential {
    /// Which invitation or token it is of.
    pub id: [u8; ID_BYTES],
    /// What proves it.
    pub secret: [u8; SECRET_BYTES],
    /// SHA-256 of the public key of the fleet's authority, as it stands in a certificate.
    pub authority: [u8; KEY_HASH_BYTES],
}

/// Why a string is no invitation, or no token.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CredentialError {
    /// It starts in another way.
    #[error("the {0} is invalid: it must start with `{prefix}`", prefix = .0.prefix())]
    Prefix(Use),
    /// It is too short or too long, has another character, or another checksum.
    #[error("the {0} is incomplete or mistyped: its checksum is wrong")]
    Damaged(Use),
}

impl Credential {
    /// Takes an invitation apart.
    ///
    /// # Errors
    /// [`CredentialError`].
    pub fn parse(text: &str) -> Result<Credential, CredentialError> {
        Credential::parse_as(Use::Join, text)
    }

    /// Takes a token apart.
    ///
    /// # Errors
    /// [`CredentialError`].
    pub fn parse_token(text: &str) -> Result<Credential, CredentialError> {
        Credential::parse_as(Use::Ask, text)
    }

    fn parse_as(use_: Use, text: &str) -> Result<Credential, CredentialError> {
        let rest = text
            .trim()
            .strip_prefix(use_.prefix())
            .ok_or(CredentialError::Prefix(use_))?;
        let damaged = || CredentialError::Damaged(use_);
        let bytes = BASE64URL_NOPAD
            .decode(rest.as_bytes())
            .map_err(|_| damaged())?;
        let bytes: [u8; BYTES] = bytes.try_into().map_err(|_| damaged())?;
        let (body, crc) = bytes.split_at(BYTES - CRC_BYTES);
        if crc32fast::hash(body).to_be_bytes() != *crc {
            return Err(damaged());
        }
        let (id, rest) = body.split_at(ID_BYTES);
        let (secret, authority) = rest.split_at(SECRET_BYTES);
        Ok(Credential {
            id: id.try_into().map_err(|_| damaged())?,
            secret: secret.try_into().map_err(|_| damaged())?,
            authority: authority.try_into().map_err(|_| damaged())?,
        })
    }

    /// The string of an invitation.
    pub fn reveal(&self) -> String {
        self.reveal_as(Use::Join)
    }

    /// The string of a token.
    pub fn reveal_token(&self) -> String {
        self.reveal_as(Use::Ask)
    }

    fn reveal_as(&self, use_: Use) -> String {
        let mut bytes = Vec::with_capacity(BYTES);
        bytes.extend_from_slice(&self.id);
        bytes.extend_from_slice(&self.secret);
        bytes.extend_from_slice(&self.authority);
        let crc = crc32fast::hash(&bytes);
        bytes.extend_from_slice(&crc.to_be_bytes());
        format!("{}{}", use_.prefix(), BASE64URL_NOPAD.encode(&bytes))
    }
}

impl fmt::Debug for Credential {
    /// Without the secret: what is printed ends up in logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credential")
            .field("id", &data_encoding::HEXLOWER.encode(&self.id))
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_string_says_what_it_was_made_of(
            id in any::<[u8; ID_BYTES]>(),
            secret in any::<[u8; SECRET_BYTES]>(),
            authority in any::<[u8; KEY_HASH_BYTES]>(),
        ) {
            let credential = Credential { id, secret, authority };
            prop_assert_eq!(Credential::parse(&credential.reveal()), Ok(credential));
        }

        #[test]
        fn one_wrong_character_is_noticed(at in 5usize..91, letter in "[A-Za-z0-9_-]") {
            let credential = Credential { id: [1; 8], secret: [2; 20], authority: [3; 32] };
            let mut text = credential.reveal();
            text.replace_range(at..at + 1, &letter);
            prop_assert!(text == credential.reveal() || Credential::parse(&text).is_err());
        }
    }

    #[test]
    fn spaces_around_it_do_no_harm() {
        let credential = Credential {
            id: [1; 8],
            secret: [2; 20],
            authority: [3; 32],
        };
        let text = format!(" {}\n", credential.reveal());
        assert_eq!(Credential::parse(&text), Ok(credential));
    }

    #[test]
    fn other_strings_are_told_apart() {
        let (prefix, damaged) = (CredentialError::Prefix, CredentialError::Damaged);
        assert_eq!(Credential::parse("abc"), Err(prefix(Use::Join)));
        for text in ["fpj1_abc", "fpj1_"] {
            assert_eq!(Credential::parse(text), Err(damaged(Use::Join)));
        }
        let credential = Credential {
            id: [1; 8],
            secret: [2; 20],
            authority: [3; 32],
        };
        let (invitation, token) = (credential.reveal(), credential.reveal_token());
        assert_eq!(Credential::parse(&token), Err(prefix(Use::Join)));
        assert_eq!(Credential::parse_token(&invitation), Err(prefix(Use::Ask)));
        assert_eq!(Credential::parse_token(&token), Ok(credential));
    }

    #[test]
    fn the_secret_is_not_printed() {
        let credential = Credential {
            id: [1; 8],
            secret: [0x5a; 20],
            authority: [3; 32],
        };
        let text = format!("{credential:?}");
        assert_eq!(text, "Credential { id: \"0101010101010101\", .. }");
    }
}
