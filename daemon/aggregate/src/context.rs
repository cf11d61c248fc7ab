//! What the kernel was doing on the CPU when a sample was taken: task, softirq, hardirq or idle.
//!
//! It is derived from the names of the kernel's frames, leaf first: the innermost entry function
//! decides. The sampling timer's own interrupt does not appear, because the callchain starts at
//! what it interrupted. Sources: `arch/x86/include/asm/idtentry.h`, `kernel/softirq.c`,
//! `kernel/entry/common.c` of Linux 6.18, with the older names since 5.4, and
//! `arch/arm64/kernel/entry-common.c`.

use profile::{FrameKind, FrameRef};

/// What the kernel was doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum Context {
    /// Work of a task: user code, its system calls and faults, kernel threads.
    #[default]
    Task,
    /// A soft interrupt, after a hard one, when a task let them in, or in its thread.
    Softirq,
    /// A hard or non-maskable interrupt.
    Hardirq,
    /// The idle task, outside of interrupts.
    Idle,
}

impl Context {
    /// Value of [`profile::key::CONTEXT`].
    pub fn word(self) -> &'static str {
        match self {
            Context::Task => "task",
            Context::Softirq => "softirq",
            Context::Hardirq => "hardirq",
            Context::Idle => "idle",
        }
    }

    /// The context of everything that a frame called, if the frame determines it.
    pub fn of(frame: FrameRef<'_>) -> Option<Context> {
        if frame.kind != FrameKind::Kernel {
            return None;
        }
        let function = frame.function;
        match function {
            "handle_softirqs"
            | "__do_softirq"
            | "do_softirq"
            | "__softirqentry_text_start"
            | "run_ksoftirqd" => Some(Context::Softirq),
            // On the way back from an interrupt a task is scheduled, or does work that was put off:
            // it is that task's own, though the interrupt's entry stands below it on the stack.
            "irqentry_exit"
            | "irqentry_exit_to_user_mode"
            | "exit_to_user_mode_loop"
            | "exit_to_user_mode_prepare"
            | "prepare_exit_to_usermode"
            | "preempt_schedule_irq"
            | "raw_irqentry_exit_cond_resched"
            | "irqentry_exit_cond_resched" => Some(Context::Task),
            "asm_common_interrupt"
            | "common_interrupt"
            | "handle_irq_event"
            | "generic_handle_arch_irq"
            | "exc_nmi"
            | "asm_exc_nmi"
            | "el0t_64_irq"
            | "el1h_64_irq"
            | "el0t_32_irq"
            | "apic_timer_interrupt"
            | "smp_apic_timer_interrupt"
            | "do_IRQ"
            | "reschedule_interrupt"
            | "call_function_interrupt"
            | "call_function_single_interrupt" => Some(Context::Hardirq),
            _ if function.starts_with("asm_sysvec_") || function.starts_with("sysvec_") => {
                Some(Context::Hardirq)
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(functions: &[&str], expected: Option<Context>) {
        let found = functions.iter().find_map(|function| {
            Context::of(FrameRef {
                kind: FrameKind::Kernel,
                function,
                ..FrameRef::default()
            })
        });
        assert_eq!(found, expected, "{functions:?}");
    }

    #[test]
    fn the_innermost_entry_tells() {
        check(
            &[
                "net_rx_action",
                "handle_softirqs",
                "__irq_exit_rcu",
                "sysvec_apic_timer_interrupt",
                "asm_sysvec_apic_timer_interrupt",
            ],
            Some(Context::Softirq),
        );
        check(
            &[
                "scheduler_tick",
                "sysvec_apic_timer_interrupt",
                "asm_sysvec_apic_timer_interrupt",
                "net_rx_action",
                "handle_softirqs",
            ],
            Some(Context::Hardirq),
        );
        check(&["vfs_read", "do_syscall_64"], None);
    }

    #[test]
    fn a_task_scheduled_on_the_way_back_from_an_interrupt_is_a_task() {
        check(
            &[
                "finish_task_switch.isra.0",
                "__schedule",
                "preempt_schedule_irq",
                "irqentry_exit",
                "asm_sysvec_apic_timer_interrupt",
            ],
            Some(Context::Task),
        );
    }

    #[test]
    fn a_function_of_a_program_is_no_entry() {
        let frame = FrameRef {
            kind: FrameKind::Native,
            function: "do_softirq",
            ..FrameRef::default()
        };
        assert_eq!(Context::of(frame), None);
    }
}
