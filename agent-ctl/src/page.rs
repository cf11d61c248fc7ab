//! `agent-ctl page`: prints a link that opens a collector's page, logged in as the user of this
//! command.

use crate::connection;
use crate::exit;
use crate::form::Form;
use crate::peer::Connection;
use crate::terminal::{Out, clean};
use anyhow::Result;
use proto::collector::OpenPageRequest;
use proto::collector::access_service_client::AccessServiceClient;
use serde::Serialize;

/// Prints a link that opens the page of a collector.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The link logs a browser in as you. It works once, within a minute. Its secret follows the `#`, so \
no server or proxy sees it.

Examples:
  agent-ctl page
  xdg-open \"$(agent-ctl page)\"")]
pub struct Args {
    #[command(flatten)]
    form: Form,
}

/// Runs the command.
pub async fn run(out: &Out, connection: &Connection, args: Args) -> Result<u8> {
    let peer = connection.collector_only("the page")?;
    let (transport, route) = connection::open(connection, &peer).await?;
    let mut service = AccessServiceClient::new(transport);
    let call = service.open_page(OpenPageRequest {});
    let page = route.answer("open the page", call).await?;
    if args.form.is_json() {
        out.write_json(&Page {
            url: &page.url,
            lifetime_s: page.lifetime_s,
        })?;
        return Ok(exit::OK);
    }
    out.write(&format!("{}\n", clean(&page.url)))?;
    if page.lifetime_s > 0 {
        note!("the link works once, within {} s", page.lifetime_s);
    }
    Ok(exit::OK)
}

#[derive(Serialize)]
struct Page<'a> {
    url: &'a str,
    lifetime_s: u32,
}
