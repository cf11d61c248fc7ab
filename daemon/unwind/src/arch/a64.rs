//! Instructions of arm64: which of them end or divert the flow of code, and how they change a frame
//! (Arm Architecture Reference Manual, C4.1). Each has four bytes.
//!
//! Compiled on every architecture, because files of arm64 can be read anywhere.

/// `e_machine` of ELF files that have them.
pub const ELF_MACHINE: u16 = 183;

/// The stack pointer, where an operand may be it.
pub const SP: u8 = 31;

/// An instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u32);

/// Where execution continues after an instruction. Distances are from the instruction. Unit:
/// instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flow {
    /// At the next one.
    Next,
    /// At the next one, once what is called has returned: there, where that is known.
    Call(Option<i32>),
    /// There.
    Jump(i32),
    /// There, or at the next one.
    Branch(i32),
    /// At a computed address.
    PointerJump,
    /// At the return address.
    Return,
    /// Nowhere.
    Nowhere,
}

/// How an instruction addresses memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The register it counts from.
    pub base: u8,
    /// Offset of the access from that. Unit: bytes.
    pub offset: i32,
    /// Change of the register itself. Unit: bytes.
    pub moves: Option<i32>,
}

/// Effect of an instruction on registers, as far as it is understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing that matters.
    None,
    /// Writes registers of 64 bits to memory.
    Store(Address, [Option<u8>; 2]),
    /// Reads registers from memory; `whole`: all 64 bits of them.
    Load {
        /// Its address.
        address: Address,
        /// The registers.
        registers: [Option<u8>; 2],
        /// All of their bits.
        whole: bool,
    },
    /// A register becomes another plus a number; either may be the stack pointer.
    Add(u8, u8, i64),
    /// The stack pointer becomes a register minus another.
    TakeFromSp(u8, u8),
    /// A register becomes a number.
    Set(u8, i64),
    /// Sixteen bits of a register become these, at this bit.
    Keep(u8, u16, u32),
    /// The stack pointer becomes something else.
    LoseSp,
    /// A register becomes something else.
    Write(u8),
    /// The same of two.
    WriteBoth(u8, u8),
}

impl Word {
    /// True where these bits of it have this value.
    pub fn is(self, value: u32, mask: u32) -> bool {
        self.0 & mask == value
    }

    /// The bits from one on.
    pub fn bits(self, from: u32, count: u32) -> u32 {
        self.0 >> from & ((1 << count) - 1)
    }

    /// The number with a sign in these bits.
    fn signed(self, from: u32, count: u32) -> i32 {
        (self.0 << (32 - from - count)) as i32 >> (32 - count)
    }

    fn register(self, from: u32) -> u8 {
        self.bits(from, 5) as u8
    }

    /// True for what fills up between functions: `nop`, and what is undefined.
    pub fn fills(self) -> bool {
        self.0 == 0xd503_201f || self.0 == 0
    }

    /// True for what functions alone start with: `bti c`, `paciasp`, `pacibsp`.
    pub fn marks_function(self) -> bool {
        matches!(self.0, 0xd503_245f | 0xd503_233f | 0xd503_237f)
    }

    /// Where execution continues.
    pub fn flow(self) -> Flow {
        if self.is(0x9400_0000, 0xfc00_0000) {
            Flow::Call(Some(self.signed(0, 26)))
        } else if self.is(0x1400_0000, 0xfc00_0000) {
            Flow::Jump(self.signed(0, 26))
        } else if self.is(0x5400_0000, 0xff00_0000) || self.is(0x3400_0000, 0x7e00_0000) {
            // b.cond, bc.cond; cbz, cbnz
            Flow::Branch(self.signed(5, 19))
        } else if self.is(0x3600_0000, 0x7e00_0000) {
            // tbz, tbnz
            Flow::Branch(self.signed(5, 14))
        } else if self.is(0xd600_0000, 0xfe00_0000) {
            match self.bits(21, 4) {
                // br and blr with their authenticating kinds.
                0b0000 | 0b1000 => Flow::PointerJump,
                0b0001 | 0b1001 => Flow::Call(None),
                0b0010 => Flow::Return,
                _ => Flow::Nowhere,
            }
        } else if self.is(0xd420_0000, 0xffe0_001f)
            || self.is(0xd440_0000, 0xffe0_001f)
            || self.is(0, 0xffff_0000)
        {
            // brk, hlt, udf
            Flow::Nowhere
        } else {
            Flow::Next
        }
    }

    /// Its effect on registers.
    pub fn effect(self) -> Effect {
        match self.bits(25, 4) {
            0b1000 | 0b1001 => self.with_number(),
            0b0101 | 0b1101 => self.with_registers(),
            0b0100 | 0b0110 | 0b1100 | 0b1110 => self.memory(),
            0b0111 | 0b1111 => self.vectors(),
            // System registers: mrs.
            0b1010 | 0b1011 if self.is(0xd530_0000, 0xfff0_0000) => self.writes(),
            _ => Effect::None,
        }
    }

    /// Writes its first operand, which is not the stack pointer.
    fn writes(self) -> Effect {
        match self.register(0) {
            SP => Effect::None,
            register => Effect::Write(register),
        }
    }

    fn with_number(self) -> Effect {
        let (to, from) = (self.register(0), self.register(5));
        match self.bits(23, 3) {
            // add, sub
            0b010 => {
                let number = i64::from(self.bits(10, 12)) << (12 * self.bits(22, 1));
                let number = if self.bits(30, 1) == 1 {
                    -number
                } else {
                    number
                };
                match (self.bits(31, 1), self.bits(29, 1)) {
                    (1, 0) => Effect::Add(to, from, number),
                    (_, 1) => self.writes(),
                    _ if to == SP => Effect::LoseSp,
                    _ => Effect::Write(to),
                }
            }
            // and, orr, eor; ands has no stack pointer
            0b100 if to == SP && self.bits(29, 2) != 0b11 => Effect::LoseSp,
            // movn, movz, movk
            0b101 if to != SP && self.bits(31, 1) == 1 => {
                let (number, at) = (self.bits(5, 16), 16 * self.bits(21, 2));
                match self.bits(29, 2) {
                    0b00 => Effect::Set(to, !(i64::from(number) << at)),
                    0b10 => Effect::Set(to, i64::from(number) << at),
                    0b11 => Effect::Keep(to, number as u16, at),
                    _ => Effect::Write(to),
                }
            }
            _ => self.writes(),
        }
    }

    fn with_registers(self) -> Effect {
        // ccmp and ccmn have flags where others have a register.
        if self.is(0x1a40_0000, 0x1fe0_0000) {
            return Effect::None;
        }
        // Signing and authenticating leave the address as it is.
        if self.is(0xdac1_0000, 0xffff_0000) {
            return Effect::None;
        }
        // add and sub of an extended register: of all that may write the stack pointer
        if self.is(0x0b20_0000, 0x1f20_0000) && self.bits(29, 1) == 0 && self.register(0) == SP {
            let plain = self.bits(13, 3) == 0b011 && self.bits(10, 3) == 0;
            return match self.bits(30, 2) {
                0b11 if plain => Effect::TakeFromSp(self.register(5), self.register(16)),
                _ => Effect::LoseSp,
            };
        }
        self.writes()
    }

    /// Moves from a register of vectors or floating point to a general one.
    fn vectors(self) -> Effect {
        let converts = self.is(0x1e20_0000, 0x5f20_fc00);
        let to_general = !matches!(self.bits(16, 3), 0b010 | 0b011 | 0b111);
        // umov, smov
        let extracts = self.is(0x0e00_3c00, 0xbfe0_fc00) || self.is(0x0e00_2c00, 0xbfe0_fc00);
        match converts && to_general || extracts {
            true => self.writes(),
            false => Effect::None,
        }
    }

    fn memory(self) -> Effect {
        let vectors = self.bits(26, 1) == 1;
        let first = self.register(0);
        let base = self.register(5);
        let general = |register: u8| (!vectors && register != 31).then_some(register);
        if self.is(0x2800_0000, 0x3a00_0000) {
            return self.pair(base, general);
        }
        let size = self.bits(30, 2);
        let kind = self.bits(22, 2);
        let loads = match vectors {
            true => kind & 1 == 1,
            false => kind != 0,
        };
        // prfm
        let prefetches = !vectors && size == 3 && kind == 2;
        let one = |address: Address| match (prefetches, loads) {
            (true, _) => Effect::None,
            (_, true) => Effect::Load {
                address,
                registers: [general(first), None],
                whole: size == 3 && kind == 1,
            },
            (_, false) => Effect::Store(address, [general(first).filter(|_| size == 3), None]),
        };
        if self.is(0x3900_0000, 0x3b00_0000) {
            // Vectors of 128 bits say so elsewhere; where they are in memory does not matter.
            return one(Address {
                base,
                offset: (self.bits(10, 12) << size) as i32,
                moves: None,
            });
        }
        if self.is(0x3800_0000, 0x3b20_0000) {
            let by = self.signed(12, 9);
            return one(match self.bits(10, 2) {
                0b01 => Address {
                    base,
                    offset: 0,
                    moves: Some(by),
                },
                0b11 => Address {
                    base,
                    offset: by,
                    moves: Some(by),
                },
                _ => Address {
                    base,
                    offset: by,
                    moves: None,
                },
            });
        }
        // ldraa, ldrab
        if self.is(0xf820_0400, 0xff20_0400) {
            return match general(first) {
                Some(first) if self.bits(11, 1) == 1 => Effect::WriteBoth(first, base),
                Some(first) => Effect::Write(first),
                None => Effect::None,
            };
        }
        // Which registers a load or store writes if it has a register offset or a literal, or is
        // exclusive or atomic.
        let literal = self.is(0x1800_0000, 0x3b00_0000);
        let by_register = self.is(0x3820_0800, 0x3b20_0c00);
        let exclusive = self.is(0x0800_0000, 0x3f00_0000);
        let atomic = self.is(0x3820_0000, 0x3b20_0c00);
        let status = self.register(16);
        let written = match () {
            () if by_register && (prefetches || !loads) => None,
            () if literal && size == 3 => None,
            () if exclusive && self.bits(22, 1) == 1 => {
                return match (general(first), general(self.register(10))) {
                    (Some(first), Some(second)) => Effect::WriteBoth(first, second),
                    (Some(one), None) | (None, Some(one)) => Effect::Write(one),
                    (None, None) => Effect::None,
                };
            }
            // stxr says there whether it did; cas gives back what there was.
            () if exclusive => (self.bits(23, 1) == 0 || self.bits(21, 1) == 1).then_some(status),
            () if literal || by_register || atomic => Some(first),
            () => None,
        };
        match written.and_then(general) {
            Some(register) => Effect::Write(register),
            None => Effect::None,
        }
    }

    fn pair(self, base: u8, general: impl Fn(u8) -> Option<u8>) -> Effect {
        let (kind, vectors) = (self.bits(30, 2), self.bits(26, 1) == 1);
        let loads = self.bits(22, 1) == 1;
        let scale = match (vectors, kind) {
            (true, kind) => 4 << kind,
            (false, 0b10) => 8,
            // stgp
            (false, 0b01) if !loads => 16,
            (false, _) => 4,
        };
        let by = self.signed(15, 7) * scale;
        let (offset, moves) = match self.bits(23, 2) {
            0b01 => (0, Some(by)),
            0b11 => (by, Some(by)),
            _ => (by, None),
        };
        let address = Address {
            base,
            offset,
            moves,
        };
        let registers = [general(self.register(0)), general(self.register(10))];
        let whole = kind == 0b10;
        match loads {
            true => Effect::Load {
                address,
                registers,
                whole,
            },
            false if whole => Effect::Store(address, registers),
            false => Effect::Store(address, [None, None]),
        }
    }
}
