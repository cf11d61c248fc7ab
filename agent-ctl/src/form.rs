//! The output format of a command: `--format`, and `--json` for scripts.

/// Forms of answers that are no files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// Text for people
    #[default]
    Text,
    /// JSON for scripts
    Json,
}

/// The options of every command that prints an answer.
#[derive(Clone, Copy, Debug, Default, clap::Args)]
pub struct Form {
    /// Output format
    #[arg(long, value_enum, default_value_t = Format::Text, help_heading = "Output")]
    format: Format,
    /// The same as --format json
    #[arg(long, conflicts_with = "format", help_heading = "Output")]
    json: bool,
}

impl Form {
    /// True when scripts are to read it.
    pub fn is_json(self) -> bool {
        self.json || self.format == Format::Json
    }
}
