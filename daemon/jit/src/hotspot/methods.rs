//! Names of Java methods, read from a JVM's own structures.

use super::layout::Layout;
use super::memory::Memory;

/// Longest name of a class, a method or a signature. Unit: bytes. The format of class files allows
/// 65,535.
const TEXT_BYTES_MAX: usize = 4096;

/// Most methods of a class that are looked through for one. Unit: methods; class files have 65,535
/// at most.
const METHODS_MAX: u64 = 65_535;

/// The lowest two bits of a word of the pool of constants are marks.
const MARKS: u64 = 3;

/// The name of a method as an agent would write it: `Lcom/foo/Bar;::baz(I)V`. `None` where the
/// structures do not fit together: its class must have it.
pub fn name(memory: &Memory, layout: &Layout, method: u64) -> Option<String> {
    let parts = Parts::of(memory, layout, method)?;
    if !is_method_of(memory, layout, method, parts.holder)? {
        return None;
    }
    parts.name(memory, layout)
}

/// The same of a method that a piece of code says it is compiled from. Those that the JVM makes for
/// calls of method handles are in no list of a class.
pub fn name_of_compiled(memory: &Memory, layout: &Layout, method: u64) -> Option<String> {
    Parts::of(memory, layout, method)?.name(memory, layout)
}

/// What belongs to a method.
struct Parts {
    constant: u64,
    pool: u64,
    /// Its class.
    holder: u64,
}

impl Parts {
    fn of(memory: &Memory, layout: &Layout, method: u64) -> Option<Parts> {
        let constant = memory.word(method.checked_add(layout.method_const)?)?;
        let pool = memory.word(constant.checked_add(layout.const_constants)?)?;
        let holder = memory.word(pool.checked_add(layout.constants_holder)?)?;
        Some(Parts {
            constant,
            pool,
            holder,
        })
    }

    fn name(&self, memory: &Memory, layout: &Layout) -> Option<String> {
        let text_of = |index: u64| {
            let index = memory.short(self.constant.checked_add(index)?)?;
            let slot = layout.constants_bytes + 8 * u64::from(index);
            let symbol = memory.word(self.pool.checked_add(slot)?)?;
            text(memory, layout, symbol & !MARKS)
        };
        let class = memory.word(self.holder.checked_add(layout.klass_name)?)?;
        let class = text(memory, layout, class)?;
        let (name, signature) = (
            text_of(layout.const_name)?,
            text_of(layout.const_signature)?,
        );
        // A hidden class has its number behind a plus.
        let class = match class.rsplit_once('+') {
            Some((class, number)) if number.starts_with("0x") => format!("{class}/{number}"),
            _ => class,
        };
        Some(format!("L{class};::{name}{signature}"))
    }
}

fn is_method_of(memory: &Memory, layout: &Layout, method: u64, holder: u64) -> Option<bool> {
    let methods = memory.word(holder.checked_add(layout.klass_methods)?)?;
    let count = u64::try_from(memory.int(methods)?).ok()?;
    if count > METHODS_MAX {
        return None;
    }
    let listed = memory.bytes(methods.checked_add(8)?, count as usize * 8)?;
    Some(
        listed
            .chunks_exact(8)
            .any(|word| word == method.to_le_bytes()),
    )
}

fn text(memory: &Memory, layout: &Layout, symbol: u64) -> Option<String> {
    let length = memory.short(symbol.checked_add(layout.symbol_length)?)?;
    let length = usize::from(length);
    if length > TEXT_BYTES_MAX {
        return None;
    }
    let bytes = memory.bytes(symbol.checked_add(layout.symbol_body)?, length)?;
    String::from_utf8(bytes).ok()
}
