//! Encodes and decodes messages for the transport with prost.
//!
//! A message is read from one piece of memory. The transport's own codec reads through a cursor
//! that is queried and advanced for every number, and a window consists of columns of numbers.

use prost::Message;
use std::marker::PhantomData;
use tonic::Status;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

/// Writes messages of one type and reads those of another.
#[derive(Clone, Copy, Debug)]
pub struct PieceCodec<Out, In>(PhantomData<(Out, In)>);

impl<Out, In> Default for PieceCodec<Out, In> {
    fn default() -> Self {
        PieceCodec(PhantomData)
    }
}

impl<Out, In> Codec for PieceCodec<Out, In>
where
    Out: Message + Send + 'static,
    In: Message + Default + Send + 'static,
{
    type Encode = Out;
    type Decode = In;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        PieceCodec(PhantomData)
    }

    fn decoder(&mut self) -> Self {
        PieceCodec(PhantomData)
    }
}

impl<Out: Message, In> Encoder for PieceCodec<Out, In> {
    type Item = Out;
    type Error = Status;

    fn encode(&mut self, message: Out, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        message
            .encode(out)
            .map_err(|error| Status::internal(error.to_string()))
    }
}

impl<Out, In: Message + Default> Decoder for PieceCodec<Out, In> {
    type Item = In;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<In>, Status> {
        use prost::bytes::Buf as _;
        let piece = bytes.chunk();
        let whole = piece.len();
        let message = if whole == bytes.remaining() {
            let message = In::decode(piece);
            bytes.advance(whole);
            message
        } else {
            In::decode(bytes)
        };
        let message = message.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Some(message))
    }
}
