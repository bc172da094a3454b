//! Which requests share a connection.

/// What a connection is for. A peer has one for each that is used, so that no request waits behind
/// those of another kind: not for their bytes, not for room in the peer's window.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub enum Way {
    /// May wait at the peer for what others do.
    #[default]
    Common,
    /// What others may wait for, and what itself waits for nobody else. The peer keeps memory back
    /// for it.
    Freeing,
    /// Of no use when late, such as a sign of life, and small.
    Prompt,
}

impl Way {
    /// As said in a hello; the numbers are wire format.
    pub(crate) fn code(self) -> u32 {
        match self {
            Self::Common => 0,
            Self::Freeing => 1,
            Self::Prompt => 2,
        }
    }

    /// Of a hello; what a newer peer calls otherwise is nothing special.
    pub(crate) fn from_code(code: u32) -> Self {
        match code {
            1 => Self::Freeing,
            2 => Self::Prompt,
            _ => Self::Common,
        }
    }
}
