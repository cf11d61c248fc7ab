//! Decodes code an instruction at a time, within a budget of work.

use iced_x86::{Decoder, DecoderOptions, Instruction, Mnemonic, OpKind};

/// Longest instruction. Unit: bytes.
const INSTRUCTION_BYTES_MAX: usize = 15;

/// Instructions decoded between two looks at the budget.
const AT_ONCE: usize = 4096;

/// Most instructions decoded for each byte of code. Instructions have four bytes, and each is
/// decoded once for what is called, once for what returns, once for its frame and a few times for
/// guesses; code that takes more is made to take long.
const WORK_PER_BYTE: usize = 4;

/// Zeros that are passed in the time of one instruction.
const ZEROS_AT_ONCE: usize = 16;

/// Alignment of functions by compilers. Unit: bytes.
const ALIGNMENT: u64 = 16;

/// Code at an address. Places in it are relative to its start.
pub struct Code<'a, 'c> {
    bytes: &'a [u8],
    base: u64,
    work_left: usize,
    check: &'c mut dyn FnMut() -> bool,
}

impl<'a, 'c> Code<'a, 'c> {
    /// `check` says now and then whether to go on.
    pub fn new(bytes: &'a [u8], base: u64, check: &'c mut dyn FnMut() -> bool) -> Code<'a, 'c> {
        Code {
            bytes,
            base,
            work_left: bytes.len().saturating_mul(WORK_PER_BYTE),
            check,
        }
    }

    /// All of it.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its address.
    pub fn base(&self) -> u64 {
        self.base
    }

    /// Its length. Unit: bytes.
    pub fn len(&self) -> u32 {
        self.bytes.len() as u32
    }

    /// Decodes the instruction at a place; false when there is none. `None` when that takes too
    /// much.
    pub fn decode(&mut self, at: u32, into: &mut Instruction) -> Option<bool> {
        self.work_left = self.work_left.checked_sub(1)?;
        if self.work_left.is_multiple_of(AT_ONCE) && !(self.check)() {
            return None;
        }
        Some(self.decode_free(at, into))
    }

    /// True when there is no work left.
    pub fn is_tedious(&self) -> bool {
        self.work_left == 0
    }

    fn decode_free(&self, at: u32, into: &mut Instruction) -> bool {
        let bytes = self.bytes.get(at as usize..).unwrap_or_default();
        let bytes = &bytes[..bytes.len().min(INSTRUCTION_BYTES_MAX)];
        let ip = self.base.wrapping_add(at.into());
        Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE).decode_out(into);
        !into.is_invalid()
    }

    /// The place of an address.
    pub fn place(&self, address: u64) -> Option<u32> {
        let at = address.checked_sub(self.base)?;
        (at < self.bytes.len() as u64).then_some(at as u32)
    }

    /// True where compilers may have a function start.
    pub fn is_aligned(&self, at: u32) -> bool {
        self.base.wrapping_add(at.into()).is_multiple_of(ALIGNMENT)
    }

    /// End of the zeros that start at a place.
    pub fn zeros_end(&mut self, at: u32) -> u32 {
        let zeros = self.bytes_at(at).iter().take_while(|&&byte| byte == 0);
        let zeros = zeros.count();
        self.work_left = self.work_left.saturating_sub(zeros / ZEROS_AT_ONCE);
        at + zeros as u32
    }

    /// The bytes from a place on.
    fn bytes_at(&self, at: u32) -> &'a [u8] {
        self.bytes.get(at as usize..).unwrap_or_default()
    }

    /// End of the padding that starts at a place: any number of zeros, or instructions that do
    /// nothing.
    pub fn padding_end(&mut self, mut at: u32) -> Option<u32> {
        let mut instruction = Instruction::default();
        while at < self.len() {
            at = self.zeros_end(at);
            let Some(&first) = self.bytes.get(at as usize) else {
                break;
            };
            // What else fills up starts with one of few bytes.
            if !matches!(
                first,
                0x0f | 0x66 | 0x2e | 0x3e | 0x48 | 0x87 | 0x89 | 0x8b | 0x90 | 0xcc | 0xf3
            ) || !self.decode(at, &mut instruction)?
            {
                break;
            }
            let fills = match instruction.mnemonic() {
                Mnemonic::Nop | Mnemonic::Int3 => true,
                // Of 32 bits they clear the upper half.
                Mnemonic::Xchg | Mnemonic::Mov => {
                    !instruction.op0_register().is_gpr32()
                        && instruction.op1_kind() == OpKind::Register
                        && instruction.op0_register() == instruction.op1_register()
                }
                _ => false,
            };
            if !fills {
                break;
            }
            at += instruction.len() as u32;
        }
        Some(at.min(self.len()))
    }
}
