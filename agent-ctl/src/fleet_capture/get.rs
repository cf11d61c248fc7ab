//! Captures stored by a collector: gets the profile of one, as it was when it ended, and deletes
//! one.

use super::list::{listed, service};
use super::{Outcome, take};
use crate::collector::Samples;
use crate::delivery::{Delivery, Rendering};
use crate::exit::{self, fail};
use crate::look::Look;
use crate::output::choose;
use crate::peer::{Connection, Peer};
use crate::render::Format;
use crate::select::{Frames, Labels};
use crate::terminal::Out;
use anyhow::Result;
use profile::Profile;
use proto::ProfileAssembler;
use proto::collector::fleet_capture_profile_response::Body;
use proto::collector::{
    DeleteFleetCaptureRequest, FleetCaptureInfo, FleetCaptureProfileRequest, FleetPlan,
};
use std::path::PathBuf;

/// What is asked of a kept capture.
#[derive(Debug, clap::Args)]
pub struct Get {
    /// Number of the capture in the list
    #[arg(value_parser = crate::number::any::<u64>())]
    id: u64,
    #[command(flatten)]
    labels: Labels,
    #[command(flatten)]
    frames: Frames,
    /// Labels to group samples by, from those that the capture kept [default: all]
    #[arg(
        long,
        value_name = "LABEL,…",
        value_delimiter = ',',
        help_heading = "Output"
    )]
    group_by: Vec<String>,
    /// Format [default: by the file name; else top on a terminal, folded elsewhere]
    #[arg(long, value_enum, help_heading = "Output")]
    format: Option<Format>,
    /// File to write, `-` for standard output
    #[arg(
        short,
        long,
        value_name = "FILE",
        default_value = "-",
        help_heading = "Output"
    )]
    output: PathBuf,
    #[command(flatten)]
    look: Look,
    /// Suppress the coverage summary
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

const WHAT: &str = "get the capture";

/// Writes the profile of a kept capture, with the time before where that was asked for.
///
/// # Errors
/// When it is not kept, or cannot be written.
pub async fn get(out: &Out, connection: &Connection, peer: &Peer, mut args: Get) -> Result<u8> {
    let format = choose(out, args.format, &args.output, &mut args.look)?;
    let id = args.id;
    let all = listed(connection, peer, id).await?;
    let known = all.captures.into_iter().find(|info| info.id == id);
    let why = match &known {
        Some(info) if info.running => "it still runs; `agent-ctl captures` shows its progress",
        Some(info) if !info.kept => "the collector has no profile of it",
        Some(_) => "",
        None => "there is no capture with this number; `agent-ctl captures` lists them",
    };
    let Some(info) = known.filter(|_| why.is_empty()) else {
        let message = format!("failed to {WHAT} `{id}`: {why}");
        return Err(fail(exit::USAGE, message));
    };
    let mut group_by = args.group_by.clone();
    if group_by.is_empty() {
        group_by.push("*".to_owned());
    }
    let request = FleetCaptureProfileRequest {
        id,
        past: false,
        matchers: args.labels.matchers()?,
        frame_filters: args.frames.filters()?,
        group_by,
        times: format.needs_times(),
    };
    let (result, profile) = one(connection, peer, request.clone()).await?;
    let past = match info.has_past {
        true => {
            let of_past = FleetCaptureProfileRequest {
                past: true,
                ..request
            };
            Some(one(connection, peer, of_past).await?.1)
        }
        false => None,
    };
    let outcome = Outcome {
        plan: FleetPlan::default(),
        result,
        profile: Some(profile),
        past,
    };
    let rendering = Rendering::Profile(format);
    let delivery = Delivery {
        rendering: &rendering,
        output: &args.output,
        look: args.look,
        labels: args.group_by,
        facts: Vec::new(),
        quiet: args.quiet,
    };
    outcome.deliver(out, false, true, &delivery)
}

/// The profile of a kept capture, without labels.
///
/// # Errors
/// When it is not kept.
pub async fn read(
    connection: &Connection,
    peer: &Peer,
    id: u64,
    samples: Samples,
) -> Result<Profile> {
    let request = FleetCaptureProfileRequest {
        id,
        past: false,
        matchers: samples.matchers,
        frame_filters: samples.filters,
        group_by: Vec::new(),
        times: false,
    };
    Ok(one(connection, peer, request).await?.1)
}

/// What came of it, and one of its profiles.
async fn one(
    connection: &Connection,
    peer: &Peer,
    request: FleetCaptureProfileRequest,
) -> Result<(FleetCaptureInfo, Profile)> {
    let (mut service, route) = service(connection, peer).await?;
    let mut stream = route.answer(WHAT, service.profile(request)).await?;
    let (mut info, mut profile) = (FleetCaptureInfo::default(), None);
    while let Some(part) = route.part(WHAT, stream.message()).await? {
        match part.body {
            Some(Body::Info(told)) => info = told,
            Some(Body::Chunk(chunk)) => take(&mut profile, chunk)?,
            // A later version may send others.
            None => {}
        }
    }
    let profile = profile.unwrap_or_else(ProfileAssembler::new).finish()?;
    Ok((info, profile))
}

/// Removes a kept capture.
///
/// # Errors
/// When none of this id is kept.
pub async fn delete(connection: &Connection, peer: &Peer, id: u64) -> Result<()> {
    let (mut service, route) = service(connection, peer).await?;
    let call = service.delete(DeleteFleetCaptureRequest { id });
    route.answer("delete the capture", call).await?;
    Ok(())
}
