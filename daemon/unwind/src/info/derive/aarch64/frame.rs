//! The known state of an arm64 frame before an instruction, and how the instruction changes it.
//!
//! A frame is described by distances from its CFA, which is the stack pointer at the function's
//! first instruction: of the stack pointer, of the frame pointer while it points into the frame,
//! and of the saved registers of the caller. Only instructions that move these are understood; for
//! all others, what they write becomes unknown.

use crate::arch::a64::{Address, Effect, Flow, SP, Word};
use crate::info::derive::frame::Value;

/// The first of the registers that calls keep: x19 to x29. Behind them comes the link register.
const KEPT_FIRST: u8 = 19;
/// x29.
const FP: u8 = 29;
/// x30.
const LR: u8 = 30;

/// Where [`Frame::saved`] has the frame pointer and the link register.
const FP_PLACE: usize = (FP - KEPT_FIRST) as usize;
const LR_PLACE: usize = (LR - KEPT_FIRST) as usize;
const KEPT: usize = LR_PLACE + 1;

/// Deepest frame that is followed. Unit: bytes. Larger ones are of code that does something else
/// with the register.
const DISTANCE_MAX: i64 = 1 << 28;

/// A frame at an instruction: how far the CFA is from registers. Unit: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The stack pointer.
    pub sp: Option<i32>,
    /// The frame pointer, while it points into the frame.
    pub fp: Option<i32>,
    saved: [Value; KEPT],
    /// A register that holds a number, which large frames are taken by.
    number: Option<(u8, i64)>,
    /// It has no caller: the code says so as the ABI specifies, by a frame pointer of zero.
    pub outermost: bool,
}

impl Frame {
    /// The frame of a function that was just called.
    pub const ENTERED: Frame = Frame {
        sp: Some(0),
        fp: None,
        saved: [Value::Same; KEPT],
        number: None,
        outermost: false,
    };

    /// The frame at the address where the kernel enters a program: it has no caller.
    pub const ENTRY: Frame = Frame {
        outermost: true,
        ..Frame::ENTERED
    };

    /// Where the caller's registers are, by their numbers in unwind tables.
    pub fn saved(&self) -> impl Iterator<Item = (u16, Value)> {
        (u16::from(KEPT_FIRST)..).zip(self.saved)
    }

    /// Where the return address is.
    pub fn returns(&self) -> Value {
        self.saved[LR_PLACE]
    }

    /// Where the caller's frame pointer is.
    pub fn frame_pointer(&self) -> Value {
        self.saved[FP_PLACE]
    }

    /// True while something leads to the CFA.
    pub fn is_followed(&self) -> bool {
        self.sp.is_some() || self.fp.is_some()
    }

    /// True where everything is as the caller left it: a function may return there, or go on as
    /// another one.
    pub fn is_left(&self) -> bool {
        self.sp == Frame::ENTERED.sp && self.saved == Frame::ENTERED.saved
    }

    /// True where an instruction is the start of another function, behind a call that does not
    /// return: it marks one, or saves the return address once more.
    pub fn is_left_for(&self, word: Word) -> bool {
        let saves = match word.effect() {
            Effect::Store(address, registers) => {
                address.base == SP && registers.contains(&Some(LR)) && self.returns() != Value::Same
            }
            _ => false,
        };
        saves || word.marks_function() && !self.is_left()
    }

    /// True where two ways meet and what is known here holds for the `other` that comes.
    pub fn holds_for(&self, other: &Frame) -> bool {
        let leads = match self.sp {
            Some(sp) => other.sp == Some(sp),
            None => self.fp == other.fp,
        };
        leads && self.returns() == other.returns()
    }

    fn distance(&self, register: u8) -> Option<i32> {
        match register {
            SP => self.sp,
            FP => self.fp,
            _ => None,
        }
    }

    /// Distance of the CFA from a place in memory, if that is one in the frame.
    fn place(&self, address: Address) -> Option<i32> {
        bounded(i64::from(self.distance(address.base)?) - i64::from(address.offset))
    }

    fn place_of(register: u8) -> Option<usize> {
        let place = usize::from(register.checked_sub(KEPT_FIRST)?);
        (place < KEPT).then_some(place)
    }

    /// A register was written: what it holds is at a distance below the CFA, or has nothing to do
    /// with the frame.
    fn writes(&mut self, register: u8, distance: Option<i32>) {
        if self.number.is_some_and(|(holds, _)| holds == register) {
            self.number = None;
        }
        if let Some(place) = Frame::place_of(register)
            && self.saved[place] == Value::Same
        {
            self.saved[place] = Value::Lost;
        }
        if register == FP {
            self.fp = distance;
        }
    }

    /// A register was read back from a place below the CFA.
    fn restores(&mut self, register: u8, from: Option<i32>) {
        self.writes(register, None);
        if let (Some(place), Some(from)) = (Frame::place_of(register), from)
            && self.saved[place] == Value::At(from)
        {
            self.saved[place] = Value::Same;
        }
    }

    /// A register was written to a place below the CFA.
    fn saves(&mut self, register: u8, to: i32) {
        if let Some(place) = Frame::place_of(register)
            && self.saved[place] == Value::Same
            && to % 8 == 0
            && to > 0
        {
            self.saved[place] = Value::At(to);
        }
    }

    fn moves(&mut self, address: Address) {
        let Some(by) = address.moves else {
            return;
        };
        let moved = self.distance(address.base);
        let moved = moved.and_then(|distance| bounded(i64::from(distance) - i64::from(by)));
        self.points(address.base, moved);
    }

    /// A register was made to point somewhere.
    fn points(&mut self, register: u8, distance: Option<i32>) {
        match register {
            SP => self.sp = distance,
            _ => self.writes(register, distance),
        }
    }

    /// Updates the frame for an instruction.
    pub fn step(&mut self, word: Word) {
        if let Flow::Call(_) = word.flow() {
            self.number = None;
            self.writes(LR, None);
            return;
        }
        match word.effect() {
            Effect::None => {}
            Effect::Store(address, registers) => {
                let to = self.place(address);
                for (register, more) in registers.into_iter().zip([0, 8]) {
                    if let (Some(register), Some(to)) = (register, to) {
                        self.saves(register, to - more);
                    }
                }
                self.moves(address);
            }
            Effect::Load {
                address,
                registers,
                whole,
            } => {
                let from = self.place(address).filter(|_| whole);
                for (register, more) in registers.into_iter().zip([0, 8]) {
                    if let Some(register) = register {
                        self.restores(register, from.map(|from| from - more));
                    }
                }
                // What it counts from may be among what it reads.
                if !registers.contains(&Some(address.base)) {
                    self.moves(address);
                }
            }
            Effect::Add(to, from, number) => {
                let points = self.distance(from);
                let points = points.and_then(|it| bounded(i64::from(it).checked_sub(number)?));
                let counts = self
                    .number
                    .filter(|(holds, _)| *holds == from && to == from);
                self.points(to, points);
                self.number = match counts {
                    Some((holds, held)) => held.checked_add(number).map(|sum| (holds, sum)),
                    None => self.number,
                };
            }
            Effect::TakeFromSp(from, register) => {
                let number = self.number.filter(|(holds, _)| *holds == register);
                let points = self.distance(from).zip(number);
                self.sp = points.and_then(|(it, (_, by))| bounded(i64::from(it).checked_add(by)?));
            }
            Effect::Set(register, number) => {
                let entered = self.sp == Frame::ENTERED.sp;
                self.outermost |=
                    register == FP && number == 0 && entered && self.frame_pointer() == Value::Same;
                self.writes(register, None);
                self.number = Some((register, number));
            }
            Effect::Keep(register, number, at) => {
                let held = self.number.filter(|(holds, _)| *holds == register);
                self.writes(register, None);
                let with = |held: i64| held & !(0xffff << at) | i64::from(number) << at;
                self.number = held.map(|(holds, held)| (holds, with(held)));
            }
            Effect::LoseSp => self.sp = None,
            Effect::Write(register) => self.writes(register, None),
            Effect::WriteBoth(first, second) => {
                self.writes(first, None);
                match second {
                    SP => self.sp = None,
                    second => self.writes(second, None),
                }
            }
        }
    }
}

fn bounded(distance: i64) -> Option<i32> {
    (-DISTANCE_MAX..=DISTANCE_MAX)
        .contains(&distance)
        .then_some(distance as i32)
}
