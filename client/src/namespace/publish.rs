//! Tells the metadata group of the files that were made here: what goes together in one request,
//! one request at a time for each of [`Of`].

use super::pending::{Answer, Made, Of, Published, Stage, Table, Wanted};
use super::publisher::Publisher;
use crate::meta::Failed;
use crate::to_the_end::to_the_end;
use crate::types::Attr;
use std::sync::Arc;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{Instant, timeout_at};
use weft_proto::v1::meta_reply::Result as Reply;
use weft_proto::v1::meta_request::Op;
use weft_proto::{Error, ErrorKind, InodeId, Result, SessionId, v1};

fn lost() -> Error {
    let what = "the cluster declared this mount dead while it was told of a new file; whether it \
                was made is not known: check and repeat it";
    Error::new(ErrorKind::Io, what)
}

/// Puts files back that were on their way when whoever told them gave up.
struct InFlight<'a> {
    publisher: &'a Publisher,
    batch: Vec<Wanted>,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        if !self.batch.is_empty() {
            let table = &mut *self.publisher.table.lock();
            self.batch.iter().for_each(|wanted| self.publisher.back(table, wanted.ino));
            self.publisher.counted(table);
        }
    }
}

impl Publisher {
    /// Returns when the group knows of these inodes and of what was made in them, or why it does
    /// not.
    pub async fn settle(self: &Arc<Self>, inos: &[InodeId]) -> Result<()> {
        match inos.is_empty() || self.is_empty() {
            true => Ok(()),
            false => self.settle_those(Some(inos)).await,
        }
    }

    /// [`Self::settle`] for all that was made.
    pub async fn settle_all(self: &Arc<Self>) -> Result<()> {
        match self.is_empty() {
            true => Ok(()),
            false => self.settle_those(None).await,
        }
    }

    /// Everything, if `inos` is `None`.
    async fn settle_those(self: &Arc<Self>, inos: Option<&[InodeId]>) -> Result<()> {
        let deadline = self.group.deadline();
        // More may be made meanwhile.
        let mut concerned = self.table.lock().concerned(inos)?;
        while !concerned.is_empty() {
            let of = {
                let table = &mut *self.table.lock();
                concerned.iter().for_each(|ino| drop(table.want(*ino, None)));
                table.turn_for(&concerned, self.group.sessions.current().id)
            };
            // When it is this one's turn, they were told, or are in the queue.
            let Ok(turn) = timeout_at(deadline, self.turn(of)).await else {
                let what = "the metadata group has not answered yet what was made here";
                return Err(Error::new(ErrorKind::TimedOut, what));
            };
            if let Err(error) = self.publish_queue(turn, of).await {
                // In the next session, if there is one and time for it. A file that is refused is
                // no error here: it is its own handles' failure.
                let again =
                    error.kind == ErrorKind::SessionExpired && !self.group.sessions.have_ended();
                if !again || Instant::now() >= deadline {
                    return Err(error);
                }
            }
            let still = self.table.lock().concerned(inos)?;
            concerned.retain(|ino| still.contains(ino));
        }
        Ok(())
    }

    /// Waits until what was wanted is told; tells what is in the queue when it is nobody else's
    /// turn.
    pub(super) async fn told(self: &Arc<Self>, ino: InodeId, mut answer: Answer) -> Published {
        loop {
            let session = self.group.sessions.current().id;
            let of = self.table.lock().turn_for(&[ino], session);
            let turn = tokio::select! {
                biased;
                told = &mut answer => return told.unwrap_or_else(|_| Err(given_up())),
                turn = self.turn(of) => turn,
            };
            match answer.try_recv() {
                Ok(told) => return told,
                Err(oneshot::error::TryRecvError::Closed) => return Err(given_up()),
                Err(oneshot::error::TryRecvError::Empty) => {
                    drop(self.publish_queue(turn, of).await)
                }
            }
        }
    }

    /// One request for what is in the queue, by whoever has the turn. Answers why the group was not
    /// told. Others wait for what it is told: it is not the caller's to give up.
    async fn publish_queue(self: &Arc<Self>, turn: OwnedMutexGuard<()>, of: Of) -> Result<()> {
        let publisher = self.clone();
        to_the_end(async move {
            let _turn = turn;
            publisher.publish_batch(of).await
        })
        .await
    }

    async fn publish_batch(self: &Arc<Self>, of: Of) -> Result<()> {
        let session = self.group.sessions.current();
        let (mut leaving, files) = {
            let (batch, files) = self.table.lock().batch(session.id, of);
            if batch.is_empty() {
                return Ok(());
            }
            (InFlight { publisher: self, batch }, files)
        };
        let (op, deadline) = (Op::MakeFiles(v1::MakeFilesOp { files }), self.group.deadline());
        let answer = match self.group.change_in(&session, op, deadline).await {
            Ok(Reply::MakeFiles(reply)) if reply.files.len() == leaving.batch.len() => {
                Ok(reply.files)
            }
            Ok(_) => {
                let error = Error::new(ErrorKind::Protocol, "the reply to new files is another's");
                Err(Failed { error, ambiguous: true })
            }
            Err(failed) => {
                if failed.error.kind == ErrorKind::SessionExpired {
                    // They are told in the next one.
                    let _ = self.group.sessions.replacement(session.id, deadline).await;
                }
                Err(failed)
            }
        };
        let mut table = self.table.lock();
        let batch = std::mem::take(&mut leaving.batch);
        let outcome = match answer {
            Ok(files) => {
                for (wanted, made) in batch.into_iter().zip(files) {
                    self.was_published(&mut table, wanted, made);
                }
                Ok(())
            }
            Err(Failed { mut error, ambiguous }) => {
                // They may have been made, and be gone again.
                let over = ambiguous && error.kind == ErrorKind::SessionExpired;
                let failure = error.clone();
                if over {
                    error = lost();
                }
                for Wanted { ino, told, .. } in batch {
                    match over {
                        true => self.failed(&mut table, ino, &error),
                        false => self.back(&mut table, ino),
                    }
                    let _ = told.send(Err(Failed { error: error.clone(), ambiguous }));
                }
                Err(failure)
            }
        };
        self.counted(&table);
        outcome
    }

    fn was_published(&self, table: &mut Table, wanted: Wanted, made: v1::make_files_reply::Made) {
        let Wanted { ino, content, told } = wanted;
        let answer = match made.error {
            0 => made.attr.map(Attr::try_from).transpose(),
            code => Err(Error::new(ErrorKind::from_code(code), made.message)),
        };
        match &answer {
            Ok(_) => drop(table.files.remove(&ino)),
            // It may be the content that is refused.
            Err(_) if content.is_some() => self.back(table, ino),
            Err(error) => self.failed(table, ino, error),
        }
        let _ = told.send(answer.map_err(|error| Failed { error, ambiguous: false }));
    }

    fn failed(&self, table: &mut Table, ino: InodeId, error: &Error) {
        if let Some(made) = table.files.get_mut(&ino) {
            made.stage = Stage::Failed(error.clone());
            self.group.leases.not_made(&made.file);
            if made.left {
                table.lose(ino);
            }
        }
    }

    /// Returns when something of these is wanted that nobody waits for. Only one may wait.
    pub async fn wanted_behind(&self, of: Of) {
        self.behind[of as usize].notified().await;
    }

    /// Publishes what is in the queue of these. What has moved there from the others is wanted
    /// then.
    pub async fn publish_behind(self: &Arc<Self>, of: Of) -> Result<()> {
        let turn = self.turn(of).await;
        let published = self.publish_queue(turn, of).await;
        let session = self.group.sessions.current().id;
        // What was in the queue when the session ended is of an earlier one now.
        for of in Of::ALL.into_iter().filter(|of| self.wants(session, *of)) {
            self.behind[of as usize].notify_one();
        }
        published
    }

    /// Has files without handles told that could not be; answers whether there are any.
    pub fn again(&self, of: Of) -> bool {
        let session = self.group.sessions.current().id;
        let table = &mut *self.table.lock();
        let late = |(ino, made): (&InodeId, &Made)| {
            let late = made.left && matches!(made.stage, Stage::Here) && made.of(session) == of;
            late.then_some(*ino)
        };
        let late: Vec<_> = table.files.iter().filter_map(late).collect();
        late.iter().for_each(|ino| self.want_behind(table, *ino));
        !late.is_empty()
    }

    /// Whether such files are in the queue.
    fn wants(&self, session: SessionId, of: Of) -> bool {
        let table = self.table.lock();
        let of_wanted = |wanted: &Wanted| table.files.get(&wanted.ino).map(|made| made.of(session));
        table.queue.iter().any(|wanted| of_wanted(wanted) == Some(of))
    }

    async fn turn(&self, of: Of) -> OwnedMutexGuard<()> {
        self.turns[of as usize].clone().lock_owned().await
    }
}

fn given_up() -> Failed {
    let what = "whoever told the metadata group of this file has given up";
    Failed { error: Error::new(ErrorKind::TimedOut, what), ambiguous: true }
}
