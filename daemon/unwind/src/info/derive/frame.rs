//! The known state of a frame before an instruction, and how the instruction changes it.
//!
//! A frame is described by distances from its CFA: of the stack pointer, of a register that points
//! into the frame, and of the saved registers of the caller. Only instructions that move these are
//! understood; for all others, what they write becomes unknown.

use crate::arch::psabi as number;
use iced_x86::{
    Instruction, InstructionInfoFactory, InstructionInfoOptions, Mnemonic, OpAccess, OpKind,
    Register,
};

/// Registers that calls keep, in the order of [`Frame::saved`].
const KEPT: [Register; 6] = [
    Register::RBX,
    Register::RBP,
    Register::R12,
    Register::R13,
    Register::R14,
    Register::R15,
];

/// Where [`KEPT`] has the frame pointer.
const RBP: usize = 1;

/// Deepest frame that is followed. Unit: bytes. Larger ones are of code that does something else
/// with the register.
const DISTANCE_MAX: i32 = 1 << 28;

/// Where the caller's value of a register is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Value {
    /// In the register.
    Same,
    /// So many bytes below the CFA.
    At(i32),
    /// Overwritten before it was saved.
    Lost,
}

/// A frame at an instruction: how far the CFA is from registers. Unit: bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Frame {
    /// The stack pointer.
    pub sp: Option<i32>,
    /// The frame pointer, while it points into the frame.
    pub fp: Option<i32>,
    /// Another register that was made to point into the frame.
    pub other: Option<(Register, i32)>,
    saved: [Value; KEPT.len()],
    /// It has no caller: the code says so as the ABI specifies, by a frame pointer of zero.
    pub outermost: bool,
}

impl Frame {
    /// The frame of a function that was just called.
    pub const ENTERED: Frame = Frame {
        sp: Some(8),
        fp: None,
        other: None,
        saved: [Value::Same; KEPT.len()],
        outermost: false,
    };

    /// The frame at the address where the kernel enters a program: it has no caller.
    pub const ENTRY: Frame = Frame {
        outermost: true,
        ..Frame::ENTERED
    };

    /// Where the caller's registers are, by their numbers in unwind tables.
    pub fn saved(&self) -> [(u16, Value); KEPT.len()] {
        let numbers = [
            number::RBX,
            number::RBP,
            number::R12,
            number::R13,
            number::R14,
            number::R15,
        ];
        std::array::from_fn(|place| (numbers[place], self.saved[place]))
    }

    /// True while something leads to the CFA.
    pub fn is_followed(&self) -> bool {
        self.sp.is_some() || self.fp.is_some() || self.other.is_some()
    }

    /// False once a register that the caller wants back was overwritten before it was saved.
    pub fn keeps_registers(&self) -> bool {
        !self.saved.contains(&Value::Lost)
    }

    /// True where two ways meet and what is known here holds for the `other` that comes.
    pub fn holds_for(&self, other: &Frame) -> bool {
        match self.sp {
            Some(sp) => other.sp == Some(sp),
            None => self.fp == other.fp && self.pointer() == other.pointer(),
        }
    }

    /// What is still known where two paths meet that used different amounts of the stack, and kept
    /// a register for that. `None` if nothing is.
    pub fn met_by(&self, came: &Frame) -> Option<Frame> {
        let both = Frame {
            sp: None,
            fp: self.fp.filter(|_| self.fp == came.fp),
            other: self.other.filter(|_| self.other == came.other),
            saved: std::array::from_fn(|place| match self.saved[place] == came.saved[place] {
                true => self.saved[place],
                false => Value::Lost,
            }),
            outermost: self.outermost && came.outermost,
        };
        (self.sp.is_some() && both.is_followed()).then_some(both)
    }

    /// The other register, where nothing else leads to the CFA.
    fn pointer(&self) -> Option<(Register, i32)> {
        self.other.filter(|_| self.fp.is_none())
    }

    /// How far the CFA is from what an instruction compares the stack pointer with.
    pub fn compared_with_sp(&self, compare: &Instruction) -> Option<i32> {
        let [first, second] = [compare.op0_register(), compare.op1_register()];
        match (first, second) {
            (Register::RSP, other) | (other, Register::RSP) => self.distance(other),
            _ => None,
        }
    }

    /// Distance of the CFA from a register.
    fn distance(&self, register: Register) -> Option<i32> {
        match register {
            Register::RSP => self.sp,
            Register::RBP => self.fp,
            _ => self
                .other
                .and_then(|(other, distance)| (other == register).then_some(distance)),
        }
    }

    /// Distance of the CFA from what an operand in memory names, if that is a place in the frame.
    fn place(&self, instruction: &Instruction) -> Option<i32> {
        if instruction.memory_index() != Register::None {
            return None;
        }
        let displacement = i32::try_from(instruction.memory_displacement64() as i64).ok()?;
        bounded(
            self.distance(instruction.memory_base())?
                .checked_sub(displacement)?,
        )
    }

    fn moves_sp(&mut self, by: i32) {
        self.sp = self.sp.and_then(|sp| bounded(sp.checked_add(by)?));
    }

    /// A register was written; what it holds is at a distance below the CFA, or has nothing to do
    /// with the frame.
    fn writes(&mut self, register: Register, distance: Option<i32>) {
        let register = register.full_register();
        if register == Register::RSP {
            self.sp = distance;
            return;
        }
        if let Some(place) = KEPT.iter().position(|&kept| kept == register)
            && self.saved[place] == Value::Same
        {
            self.saved[place] = Value::Lost;
        }
        if register == Register::RBP {
            self.fp = distance;
        } else if self.other.is_some_and(|(other, _)| other == register) {
            self.other = None;
        }
    }

    /// A register was read back from a place below the CFA.
    fn restores(&mut self, register: Register, from: Option<i32>) {
        self.writes(register, None);
        if let (Some(place), Some(from)) = (KEPT.iter().position(|&kept| kept == register), from)
            && self.saved[place] == Value::At(from)
        {
            self.saved[place] = Value::Same;
        }
    }

    /// A register was written to a place below the CFA.
    fn saves(&mut self, register: Register, to: i32) {
        if let Some(place) = KEPT.iter().position(|&kept| kept == register)
            && self.saved[place] == Value::Same
            && to % 8 == 0
            && to > 8
        {
            self.saved[place] = Value::At(to);
        }
    }

    /// Updates the frame for an instruction.
    pub fn step(&mut self, instruction: &Instruction, accesses: &mut Accesses) {
        let first = match instruction.op0_kind() {
            OpKind::Register => instruction.op0_register(),
            _ => Register::None,
        };
        let second = match instruction.op1_kind() {
            OpKind::Register => instruction.op1_register(),
            _ => Register::None,
        };
        match instruction.mnemonic() {
            Mnemonic::Push => {
                self.moves_sp(-instruction.stack_pointer_increment());
                if let Some(sp) = self.sp {
                    self.saves(first, sp);
                }
            }
            Mnemonic::Pop => {
                let from = self.sp;
                self.moves_sp(-instruction.stack_pointer_increment());
                if first != Register::None {
                    self.restores(first, from);
                }
            }
            Mnemonic::Leave => {
                self.sp = self.fp;
                let from = self.sp;
                self.moves_sp(-8);
                self.restores(Register::RBP, from);
            }
            Mnemonic::Enter => {
                self.moves_sp(8);
                if let Some(sp) = self.sp {
                    self.saves(Register::RBP, sp);
                }
                self.writes(Register::RBP, self.sp);
                self.moves_sp(i32::from(instruction.immediate16()));
            }
            Mnemonic::Call => {
                // Where the call is to the next instruction, that takes its own address.
                if instruction.near_branch_target() == instruction.next_ip() {
                    self.moves_sp(8);
                }
                if let Some((other, _)) = self.other
                    && !KEPT.contains(&other)
                {
                    self.other = None;
                }
            }
            Mnemonic::Add | Mnemonic::Sub if first == Register::RSP => {
                let by = instruction.op1_kind();
                let by = (by != OpKind::Register && by != OpKind::Memory)
                    .then(|| i32::try_from(instruction.immediate(1) as i64).ok())
                    .flatten();
                match by {
                    Some(by) if instruction.mnemonic() == Mnemonic::Sub => self.moves_sp(by),
                    Some(by) => self.moves_sp(by.wrapping_neg()),
                    None => self.sp = None,
                }
            }
            Mnemonic::Lea => {
                let place = self.place(instruction);
                self.points(first, place);
            }
            Mnemonic::Mov if first != Register::None && second != Register::None => {
                self.points(first, self.distance(second));
            }
            Mnemonic::Mov
                if first != Register::None && instruction.op1_kind() == OpKind::Memory =>
            {
                let from = self.place(instruction);
                self.restores(first.full_register(), from);
            }
            Mnemonic::Mov if second != Register::None => {
                if let Some(to) = self.place(instruction) {
                    self.saves(second, to);
                }
            }
            Mnemonic::Xor if first == second && first.full_register() == Register::RBP => {
                self.outermost |= self.saved[RBP] == Value::Same && self.sp == Frame::ENTERED.sp;
                self.writes(first, None);
            }
            Mnemonic::Xchg => {
                self.writes_if_any(first);
                self.writes_if_any(second);
            }
            _ => {
                accesses.each_written(instruction, self.other.is_some(), |register| {
                    self.writes(register, None);
                });
                let by = instruction.stack_pointer_increment();
                if by != 0 {
                    self.moves_sp(by.wrapping_neg());
                }
            }
        }
    }

    fn writes_if_any(&mut self, register: Register) {
        if register != Register::None {
            self.writes(register, None);
        }
    }

    /// A register was made to point somewhere.
    fn points(&mut self, register: Register, distance: Option<i32>) {
        let distance = distance.filter(|_| register.is_gpr64());
        self.writes(register, distance);
        let other = !matches!(register, Register::RSP | Register::RBP);
        // Addresses of variables are taken all the time, those of the CFA and of the end of the
        // stack to find back; compilers compare with r11 when they touch page after page.
        if let Some(distance) = distance
            && other
            && (distance == 0 || Some(distance) == self.sp || register == Register::R11)
        {
            self.other = Some((register, distance));
        }
    }
}

fn bounded(distance: i32) -> Option<i32> {
    (-DISTANCE_MAX..=DISTANCE_MAX)
        .contains(&distance)
        .then_some(distance)
}

/// Finds which operands instructions write.
pub struct Accesses {
    factory: InstructionInfoFactory,
}

impl Accesses {
    /// One for any instruction.
    pub fn new() -> Accesses {
        Accesses {
            factory: InstructionInfoFactory::new(),
        }
    }

    /// Hands each general register that an instruction writes to `each`; without `all` those that
    /// calls keep and the stack pointer are enough.
    fn each_written(
        &mut self,
        instruction: &Instruction,
        all: bool,
        mut each: impl FnMut(Register),
    ) {
        // What writes others than its first operand.
        let odd = matches!(
            instruction.mnemonic(),
            Mnemonic::Cpuid | Mnemonic::Xadd | Mnemonic::Mulx
        );
        let first = instruction.op0_register().full_register();
        let kept = instruction.op0_kind() == OpKind::Register
            && (first == Register::RSP || KEPT.contains(&first));
        if !all && !odd && !kept {
            return;
        }
        let writes = |access| {
            matches!(
                access,
                OpAccess::Write
                    | OpAccess::CondWrite
                    | OpAccess::ReadWrite
                    | OpAccess::ReadCondWrite
            )
        };
        let options = InstructionInfoOptions::NO_MEMORY_USAGE;
        let info = self.factory.info_options(instruction, options);
        for used in info.used_registers() {
            let register = used.register().full_register();
            // The stack pointer of pushes and the like is counted by their increment.
            let moved = register == Register::RSP && instruction.stack_pointer_increment() != 0;
            if writes(used.access()) && register.is_gpr64() && !moved {
                each(register);
            }
        }
    }
}
