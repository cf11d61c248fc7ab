//! The two tables of things that go wrong with a sample: how its stack ended, and why a frame has
//! no symbol. Ids are stable: they are stored and sent.

macro_rules! table {
    ($(#[$meta:meta])* $name:ident { $($(#[$default:meta])? $variant:ident = $id:literal, $word:literal, $sentence:literal;)* }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        #[repr(u8)]
        pub enum $name { $(#[doc = $sentence] $(#[$default])? $variant = $id,)* }

        impl $name {
            /// Every row of the table in id order.
            pub const ALL: &'static [$name] = &[$($name::$variant,)*];

            /// The row with this id.
            pub fn from_u8(id: u8) -> Option<$name> {
                match id { $($id => Some($name::$variant),)* _ => None }
            }

            /// Short name, for labels and metrics.
            pub fn word(self) -> &'static str {
                match self { $($name::$variant => $word,)* }
            }

            /// The sentence `agent-ctl doctor` explains it with.
            pub fn sentence(self) -> &'static str {
                match self { $($name::$variant => $sentence,)* }
            }
        }
    };
}

table! {
    /// How a stack ended at its root end.
    StackEnd {
        #[default] Complete = 0, "complete", "the stack reaches a start function or the kernel's entry of a thread without user code";
        DepthLimit = 1, "depth_limit", "the stack is deeper than the limit: its root end was cut";
        BrokenChain = 2, "broken_chain", "the frame-pointer chain ends before a start function: code on the way was built without frame pointers";
        Unmapped = 3, "unmapped", "the next return address is in no mapping of the process";
        NoUserStack = 4, "no_user_stack", "the kernel delivered no user stack for a process that has one";
        CopyTooSmall = 5, "copy_too_small", "the copy of the user stack ends before the stack does";
        NoUnwindInfo = 6, "no_unwind_info", "the file on the way has no unwind information for the address";
        UnreadableMemory = 7, "unreadable_memory", "the unwinder needed memory that the copy of the stack does not hold";
        Unresolved = 8, "unresolved", "the stack has unnamed frames at its root, so whether it is complete is not known";
        Lost = 9, "lost", "the sample was lost before its stack was seen: its weight is an estimate";
        ThirtyTwoBit = 10, "thirty_two_bit", "a 32-bit program: its stack copy is not unwound";
        ModuleLoading = 11, "module_loading", "the unwind information of a file on the way was not \
            in memory: these are its first samples, or there is no room for the files of all \
            running programs";
        NoProgress = 12, "no_progress", "the unwinder met a frame that does not lead further up the stack: damaged stack or wrong unwind information";
        Stitched = 13, "stitched", "complete: the outer part was read from the thread's memory while a watch proved that the call still ran";
        ModuleRefused = 14, "module_refused", "the unwind information of a file on the way takes \
            more memory, or more time to read, than the limit";
        GeneratedCode = 15, "generated_code", "the stack breaks off in generated code: its runtime \
            keeps no frame pointers there and gives no unwind information; the runtime may have an \
            option for that";
        WorkLimit = 16, "work_limit", "the unwind information on the way needs more work for one \
            stack than the limit";
        Alike = 17, "alike", "complete by an estimate: the outer part comes from a larger copy of \
            the same thread's stack, with the same registers and the same words as far as both \
            were copied";
        OtherStack = 18, "other_stack", "the program switched to another stack on the way, as Go \
            does for its runtime and for C, and nothing leads back to the first stack";
        Scanned = 19, "scanned", "complete by evidence: the frame of generated code is unknown, so \
            its caller is the nearest address on the stack from which unwind information leads to \
            a start function; generated callers between them are missing";
        LentFrame = 20, "lent_frame", "complete except for callers on a separate stack: compiled \
            Haskell, and C that Erlang calls, run in the frame of the runtime's function that \
            entered the code, and keep their own callers elsewhere";
        KnownCallers = 21, "known_callers", "complete by experience: the copy ends within the \
            frame of a function that had the same callers, and no others, in two or more other \
            processes of its cgroup";
    }
}

impl StackEnd {
    /// True when the stack is there up to its start function.
    pub fn is_complete(self) -> bool {
        matches!(
            self,
            StackEnd::Complete
                | StackEnd::Stitched
                | StackEnd::Alike
                | StackEnd::Scanned
                | StackEnd::LentFrame
                | StackEnd::KnownCallers
        )
    }

    /// True when callers are known to be missing, for whatever cause: the one definition of a
    /// truncated stack, by which samples are counted and put under `[truncated]`. Of
    /// [`StackEnd::Unresolved`] it is not known, and a lost sample has no stack that could be cut.
    pub fn is_truncated(self) -> bool {
        !self.is_complete() && !matches!(self, StackEnd::Unresolved | StackEnd::Lost)
    }
}

table! {
    /// Why a frame has no symbol.
    UnnamedReason {
        #[default] No = 0, "named", "the frame has a symbol";
        NoSymbols = 1, "no_symbols", "the file is stripped and no separate debug file was found";
        NotInSymbols = 2, "not_in_symbols", "the file has symbols, but none covers the address";
        FileGone = 3, "file_gone", "the file was gone before it could be opened";
        FileChanged = 4, "file_changed", "the file at the path is not the one that ran";
        FileUnreadable = 5, "file_unreadable", "the file could not be read or is damaged";
        NoMapping = 6, "no_mapping", "the address is in no known mapping of the process";
        JitNoMap = 7, "jit_no_map", "generated code, and the runtime writes no perf map";
        JitNotInMap = 8, "jit_not_in_map", "generated code that the runtime's perf map does not list";
        JitMapRefused = 9, "jit_map_refused", "the perf map is not a plain file of the process's owner, or is over the size limit";
        KernelHidden = 10, "kernel_hidden", "kernel symbols are hidden by kernel.kptr_restrict";
        ProcessUnknown = 11, "process_unknown", "the process ended before the daemon read anything \
            about it";
        Limit = 12, "limit", "the symbolizer reached a limit; see its drop counters";
        NotInKallsyms = 13, "not_in_kallsyms", "the kernel lists no symbol for the address";
        JitProcessGone = 14, "jit_process_gone", "generated code of a process that ended before its perf map was read";
        JitMapLate = 15, "jit_map_late", "generated code whose perf map could not be read in time; \
            the daemon reads it later";
        JitReused = 16, "jit_reused", "generated code: the address was reused around that time, \
            and the perf map does not tell when";
        OverBudget = 17, "over_budget", "reading the symbols would take more memory or time than \
            the limit for a file or its owner";
        OtherStack = 18, "other_stack", "the caller of a function that switched to another stack \
            and keeps no frame pointer there; the callers beyond it are known";
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_is_complete_or_truncated_or_it_is_not_known() {
        for &end in StackEnd::ALL {
            let unknown = matches!(end, StackEnd::Unresolved | StackEnd::Lost);
            assert_eq!(
                [end.is_complete(), end.is_truncated(), unknown]
                    .iter()
                    .filter(|&&holds| holds)
                    .count(),
                1,
                "{end:?}"
            );
        }
        assert!(StackEnd::CopyTooSmall.is_truncated() && StackEnd::DepthLimit.is_truncated());
    }
}
