//! Runs `top` on a terminal: keys, the stream or the queries, drawing. It continues when the agent
//! or the collector comes back.

use super::app::{Agent, App, Event, ViewRequest};
use super::fleet::{self, POLL_INTERVAL, Question};
use super::view;
use crate::client::Client;
use crate::collector::Collector;
use crate::exit;
use crate::peer::{Connection, Peer};
use anyhow::{Context, Result};
use crossterm::event::{Event as Input, EventStream, KeyEventKind};
use proto::agent::StreamProfilesRequest;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_stream::StreamExt;

/// Events that may wait for the screen. A slow terminal then slows the stream, which the agent
/// counts as missed.
const EVENTS_MAX: usize = 4;

/// Time between questions for the agent's own cost.
const STATUS_INTERVAL: Duration = Duration::from_secs(5);

/// First and longest wait before connecting again.
const RETRY: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(10));

/// Puts the terminal back, however this ends.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Runs until the person quits. `colour` is false where `NO_COLOR` asks for that.
pub async fn run(
    connection: &Connection,
    peer: &Peer,
    request: StreamProfilesRequest,
    app: App,
    colour: bool,
) -> Result<u8> {
    // The first connection fails as any command does; later ones are tried again.
    let client = Client::connect(connection, peer).await?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let (connection, peer) = (connection.clone(), peer.clone());
    let watcher =
        tokio::spawn(async move { watch(client, connection, peer, request, sender).await });
    let (requests, _) = watch::channel(app.view_request());
    let ended = screen(app, colour, events, &requests).await;
    watcher.abort();
    ended
}

/// The same for a fleet, of which a collector is asked for the rows of the view.
pub async fn run_fleet(
    connection: &Connection,
    peer: &Peer,
    question: Question,
    app: App,
    colour: bool,
) -> Result<u8> {
    let collector = Collector::connect(connection, peer).await?;
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let (requests, changes) = watch::channel(app.view_request());
    let poller = tokio::spawn(async move { poll(collector, question, changes, sender).await });
    let ended = screen(app, colour, events, &requests).await;
    poller.abort();
    ended
}

/// Draws and takes keys and events until the person quits; says which view of a fleet to query.
async fn screen(
    mut app: App,
    colour: bool,
    mut events: mpsc::Receiver<Event>,
    requests: &watch::Sender<ViewRequest>,
) -> Result<u8> {
    // Sets a panic hook too that restores the terminal before the message is printed.
    let mut terminal = ratatui::try_init().context("failed to set up the terminal")?;
    let _restore = Restore;
    let mut input = EventStream::new();
    loop {
        terminal.draw(|frame| view::draw(frame, &app, colour))?;
        tokio::select! {
            typed = input.next() => match typed {
                Some(Ok(Input::Key(key))) if key.kind != KeyEventKind::Release => {
                    if app.key(key, view::page(terminal.size()?.height)) {
                        break;
                    }
                    requests.send_if_modified(|now| {
                        std::mem::replace(now, app.view_request()) != app.view_request()
                    });
                }
                Some(Ok(_)) => {}
                Some(Err(error)) => return Err(error).context("failed to read the terminal"),
                // The terminal is gone.
                None => break,
            },
            event = events.recv() => match event {
                Some(event) => app.take(event),
                None => break,
            },
        }
    }
    Ok(exit::OK)
}

/// Queries a collector for the rows of the view, at once when the view changes and again each
/// window, until the receiver is gone.
async fn poll(
    mut collector: Collector,
    question: Question,
    mut requests: watch::Receiver<ViewRequest>,
    sender: mpsc::Sender<Event>,
) {
    let mut wait = RETRY.0;
    let mut before: Option<ViewRequest> = None;
    loop {
        let request = *requests.borrow_and_update();
        let same =
            before.is_some_and(|before| (before.view, before.sort) == (request.view, request.sort));
        let mut pause = POLL_INTERVAL;
        if !(request.paused && same) {
            let rows = tokio::select! {
                rows = fleet::ask(&mut collector, &question, request.view, request.sort) => rows,
                // Another view is looked at: this query is cancelled, at the collector too.
                changed = requests.changed() => match changed {
                    Ok(()) => continue,
                    Err(_) => return,
                },
            };
            let event = match rows {
                Ok(rows) => {
                    before = Some(request);
                    wait = RETRY.0;
                    Event::Rows(Box::new(rows))
                }
                Err(error) => {
                    pause = wait;
                    wait = (wait * 2).min(RETRY.1);
                    Event::Lost(first_line(&error), pause)
                }
            };
            if sender.send(event).await.is_err() {
                return;
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            changed = requests.changed() => if changed.is_err() {
                return;
            },
        }
    }
}

/// Forwards events from the agent in an endless loop.
async fn watch(
    client: Client,
    connection: Connection,
    peer: Peer,
    request: StreamProfilesRequest,
    sender: mpsc::Sender<Event>,
) {
    let mut client = Some(client);
    let mut wait = RETRY.0;
    loop {
        let connected = match client.take() {
            Some(client) => Ok(client),
            None => Client::connect(&connection, &peer).await,
        };
        let why = match connected {
            Ok(client) => {
                let (why, lived) = follow(client, &request, &sender).await;
                if lived {
                    wait = RETRY.0;
                }
                why
            }
            Err(error) => Some(first_line(&error)),
        };
        let Some(why) = why else { return };
        if sender.send(Event::Lost(why, wait)).await.is_err() {
            return;
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(RETRY.1);
    }
}

/// Feeds events from one connection until it breaks; why, and whether anything came. `None`: nobody
/// listens any more.
async fn follow(
    mut client: Client,
    request: &StreamProfilesRequest,
    sender: &mpsc::Sender<Event>,
) -> (Option<String>, bool) {
    let mut lived = false;
    let mut stream = match client.stream(request.clone()).await {
        Ok(stream) => stream,
        Err(error) => return (Some(first_line(&error)), lived),
    };
    // The status is asked for by a task of its own, so that it never holds up the stream.
    let status = tokio::spawn(ask_status(client, sender.clone()));
    let why = loop {
        match stream.next().await {
            Ok(Some((profile, missed))) => {
                lived = true;
                if sender
                    .send(Event::Profile(Box::new(profile), missed))
                    .await
                    .is_err()
                {
                    break None;
                }
            }
            Ok(None) => break Some("the agent ended the stream".to_owned()),
            Err(error) => break Some(first_line(&error)),
        }
    };
    status.abort();
    (why, lived)
}

async fn ask_status(mut client: Client, sender: mpsc::Sender<Event>) {
    let mut before = None;
    // An agent that does not answer is noticed by the stream.
    while let Ok(status) = client.status().await {
        let agent = Agent::of(&status, before.as_ref());
        if sender.send(Event::Agent(agent)).await.is_err() {
            return;
        }
        before = Some(status);
        tokio::time::sleep(STATUS_INTERVAL).await;
    }
}

fn first_line(error: &anyhow::Error) -> String {
    format!("{error:#}")
        .lines()
        .next()
        .unwrap_or_default()
        .to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::collector::Samples;
    use crate::top::Sort;
    use crate::top::model::View;
    use std::net::SocketAddr;
    use testkit::fake::collector::{Behaviour, FakeCollector};

    async fn connected(to: SocketAddr) -> Collector {
        let words = ["agent-ctl", "--collector", &to.to_string(), "top"].map(Into::into);
        let connection = crate::cli::parse(words).unwrap().connection;
        let peer = connection.peer().unwrap();
        Collector::connect(&connection, &peer).await.unwrap()
    }

    /// The view of the next rows, whatever is lost before.
    async fn next_view(events: &mut mpsc::Receiver<Event>) -> View {
        loop {
            match events.recv().await.unwrap() {
                Event::Rows(table) => return table.view,
                Event::Lost(..) => {}
                _ => panic!("nothing else comes of a collector"),
            }
        }
    }

    fn request(view: View) -> ViewRequest {
        ViewRequest {
            view,
            sort: Sort::Own,
            paused: false,
        }
    }

    #[tokio::test]
    async fn each_view_is_asked_for_and_again_when_the_collector_is_back() {
        let fake = FakeCollector::start(Behaviour::default());
        let address = fake.address();
        let question = Question {
            range: Duration::from_secs(60),
            samples: Samples::default(),
            limit: 10,
        };
        let (sender, mut events) = mpsc::channel(EVENTS_MAX);
        let (requests, changes) = watch::channel(request(View::Functions));
        let collector = connected(address).await;
        let poller = tokio::spawn(poll(collector, question, changes, sender));
        for view in [View::Functions, View::Hosts, View::Cgroups] {
            requests.send_replace(request(view));
            // A question that was answered in between is of the view before.
            while next_view(&mut events).await != view {}
        }
        drop(fake);
        requests.send_replace(request(View::Processes));
        assert!(matches!(events.recv().await, Some(Event::Lost(..))));
        let _again = FakeCollector::at(address, Behaviour::default());
        assert_eq!(next_view(&mut events).await, View::Processes);
        drop(requests);
        poller.await.unwrap();
    }
}
