//! A request over gRPC that is not decoded yet: the transport decodes on the threads that answer
//! everybody, and a message of strangers may take seconds and fifty times its size in memory.

use bytes::{Buf, BufMut, Bytes};
use prost::encoding::{DecodeContext, WireType, skip_field};
use prost::{DecodeError, Message};

/// The bytes of a message, whatever they are.
#[derive(Clone, Debug, Default)]
pub struct Unread(pub Bytes);

impl Message for Unread {
    fn encode_raw(&self, out: &mut impl BufMut) {
        out.put_slice(&self.0);
    }

    /// All that is left is the message.
    fn merge(&mut self, mut from: impl Buf) -> Result<(), DecodeError> {
        self.0 = from.copy_to_bytes(from.remaining());
        Ok(())
    }

    /// As a part of another message it would be empty; it is none.
    fn merge_field(
        &mut self,
        tag: u32,
        kind: WireType,
        from: &mut impl Buf,
        context: DecodeContext,
    ) -> Result<(), DecodeError> {
        skip_field(kind, tag, from, context)
    }

    fn encoded_len(&self) -> usize {
        self.0.len()
    }

    fn clear(&mut self) {
        self.0.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_are_a_message_and_stay_what_they_are() {
        for bytes in [&b""[..], &[0x0a, 200], &[0xff; 40]] {
            let read = Unread::decode(bytes).expect("anything is one");
            assert_eq!(read.0, bytes);
            assert_eq!(read.encode_to_vec(), bytes);
        }
    }
}
