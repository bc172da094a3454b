//! `weft top`: the cluster at a glance, again and again.

mod ask;
mod frame;
mod screen;

use crate::control::ClusterArgs;
use crate::output::{Format, OutputArgs, tell};
use anyhow::{Result, bail, ensure};
use ask::{Seen, ask};
use screen::{Key, Screen};
use std::io::IsTerminal;
use std::time::{Duration, Instant};
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::sleep;

/// Show health, room, throughput, repair, and who is busy, live
///
/// What is wrong comes first, with the command that helps. Rates are those of the last five
/// seconds. Ends at q, Ctrl-C or SIGTERM, and leaves the terminal as it was. Tenants are shown to
/// admins only, where there are certificates.
#[derive(clap::Args, Debug)]
#[command(after_help = "Examples:
  weft top --cluster 10.0.0.1:7100
  weft top --once --cluster 10.0.0.1:7100
  weft top --output json --interval 10 --cluster 10.0.0.1:7100

The same for browsers: http://10.0.0.1:7100/ (https with certificates)")]
pub struct Args {
    #[command(flatten)]
    cluster: ClusterArgs,
    /// Seconds between two looks
    #[arg(long, default_value_t = 2.0, value_name = "SECONDS", value_parser = interval)]
    interval: f64,
    /// Look once, print that and end; exit code 1 if no metadata server leads
    #[arg(long)]
    once: bool,
    /// With json: one object a line, as often as it looks
    #[command(flatten)]
    output: OutputArgs,
}

fn interval(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(seconds) if (0.5..=3600.0).contains(&seconds) => Ok(seconds),
        _ => Err("seconds from 0.5 to 3600".into()),
    }
}

pub async fn run(args: Args) -> Result<()> {
    let mut leader = None;
    if args.once {
        let seen = ask(&args.cluster.cluster, &mut leader).await?;
        args.output.print(&seen.overview, |_| {
            let frame = frame::frame(&seen, &frame::Style { width: 120, ..Default::default() });
            frame.join("\n")
        })?;
        ensure!(
            seen.overview.leads,
            "no metadata server says that it leads, so nothing else is known"
        );
        return Ok(());
    }
    let every = Duration::from_secs_f64(args.interval);
    if args.output.output == Format::Json {
        loop {
            let seen = ask(&args.cluster.cluster, &mut leader).await?;
            if !tell(&serde_json::to_string(&seen.overview)?)? {
                return Ok(());
            }
            sleep(every).await;
        }
    }
    if !std::io::stdout().is_terminal() {
        bail!("standard output is no terminal: print one look with weft top --once");
    }
    live(&args, every).await
}

/// Until somebody asks for the end; other keys mean nothing now.
async fn quit(screen: &mut Screen) {
    while screen.key().await != Some(Key::Quit) {}
}

/// Until somebody has enough of it.
async fn live(args: &Args, every: Duration) -> Result<()> {
    let mut leader = None;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    let mut resized = signal(SignalKind::window_change())?;
    let mut screen = Screen::take()?;
    let mut last: Option<(Seen, Instant)> = None;
    let mut failure = None;
    let mut due = true;
    loop {
        if due {
            // Who waits for a cluster that does not answer may still go.
            let asked = tokio::select! {
                asked = ask(&args.cluster.cluster, &mut leader) => asked,
                () = quit(&mut screen) => return Ok(()),
                _ = interrupt.recv() => return Ok(()),
                _ = terminate.recv() => return Ok(()),
            };
            match asked {
                Ok(seen) => (last, failure) = (Some((seen, Instant::now())), None),
                Err(error) => failure = Some(crate::output::describe(&error)),
            }
        }
        let (width, height) = screen.size();
        let style = frame::Style { width, colors: true, every: Some(every) };
        let mut lines = Vec::new();
        if let Some(why) = &failure {
            let ago = last.as_ref().map(|(_, at)| at.elapsed().as_secs());
            lines.extend(frame::silent(why, ago, &style));
        }
        lines.extend(last.iter().flat_map(|(seen, _)| frame::frame(seen, &style)));
        screen.draw(&lines, height)?;
        due = tokio::select! {
            () = sleep(every) => true,
            key = screen.key() => match key {
                Some(Key::Quit) => return Ok(()),
                Some(Key::Look) => true,
                None => { sleep(every).await; true }
            },
            _ = resized.recv() => false,
            _ = interrupt.recv() => return Ok(()),
            _ = terminate.recv() => return Ok(()),
        };
    }
}
