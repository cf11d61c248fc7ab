//! Statements with their values: text from outside never stands in SQL.

/// Most text of one value. Unit: bytes. The server takes 131,072 (`http_max_field_value_size`).
const VALUE_LEN_MAX: usize = 120_000;
/// Most text of a number and what parts it from the next. Unit: bytes.
const NUMBER_LEN_MAX: usize = 21;

/// A value that stands in a statement by its name.
#[derive(Clone, Debug)]
pub(super) enum Param {
    /// A value of type `String`.
    Text(String),
    /// A value of type `Array(String)`.
    Texts(Vec<String>),
    /// A value of type `Array(UInt64)`.
    Numbers(Vec<u64>),
    /// A value of type `Array(Tuple(UInt64, UInt64))`.
    Pairs(Vec<(u64, u64)>),
}

/// A statement and the values it names. Text from outside is in the values only.
#[derive(Clone, Debug, Default)]
pub(super) struct Statement {
    /// SQL with `{p0:String}` and so on.
    pub sql: String,
    /// By position.
    pub params: Vec<Param>,
}

impl Statement {
    /// SQL alone.
    pub fn of(sql: impl Into<String>) -> Statement {
        Statement {
            sql: sql.into(),
            params: Vec::new(),
        }
    }

    /// Keeps a value and returns how the SQL names it.
    pub fn param(&mut self, value: Param) -> String {
        let of_type = match &value {
            Param::Text(_) => "String",
            Param::Texts(_) => "Array(String)",
            Param::Numbers(_) => "Array(UInt64)",
            Param::Pairs(_) => "Array(Tuple(UInt64, UInt64))",
        };
        self.params.push(value);
        format!("{{p{}:{of_type}}}", self.params.len() - 1)
    }

    /// Keeps a list and returns the SQL of its array. Lists are cut, because the server bounds each
    /// value of a request.
    fn list<T: Clone>(
        &mut self,
        all: &[T],
        of: impl Fn(Vec<T>) -> Param,
        len: impl Fn(&T) -> usize,
    ) -> String {
        let (mut arrays, mut some, mut bytes) = (Vec::new(), Vec::new(), 0);
        for one in all {
            if bytes + len(one) > VALUE_LEN_MAX && !some.is_empty() {
                arrays.push(self.param(of(std::mem::take(&mut some))));
                bytes = 0;
            }
            bytes += len(one);
            some.push(one.clone());
        }
        if !some.is_empty() || arrays.is_empty() {
            arrays.push(self.param(of(some)));
        }
        match arrays.as_slice() {
            [one] => one.clone(),
            many => format!("arrayConcat({})", many.join(", ")),
        }
    }

    /// SQL of an array of numbers.
    pub fn numbers(&mut self, all: &[u64]) -> String {
        self.list(all, Param::Numbers, |_| NUMBER_LEN_MAX)
    }

    /// SQL of an array of pairs.
    pub fn pairs(&mut self, all: &[(u64, u64)]) -> String {
        self.list(all, Param::Pairs, |_| 2 * NUMBER_LEN_MAX + 2)
    }

    /// SQL of an array of texts.
    pub fn texts(&mut self, all: &[String]) -> String {
        // Every byte may be escaped.
        self.list(all, Param::Texts, |text| 2 * text.len() + 3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_lists_become_several_values() {
        let mut statement = Statement::default();
        let all: Vec<u64> = (0..12_000).collect();
        let sql = statement.numbers(&all);
        assert!(
            sql.starts_with("arrayConcat({p0:Array(UInt64)}, {p1:"),
            "{sql}"
        );
        let sent: Vec<u64> = statement
            .params
            .iter()
            .flat_map(|param| match param {
                Param::Numbers(numbers) => numbers.clone(),
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(sent, all);
        assert_eq!(Statement::default().texts(&[]), "{p0:Array(String)}");
    }
}
