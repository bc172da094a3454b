//! Where the cluster is, and what its metadata servers say.

use crate::network::transport;
use weft_control::Answers;
use weft_proto::Result;
use weft_proto::v1::StatusReply;

/// Where the cluster is.
#[derive(clap::Args, Clone, Debug)]
pub struct ClusterArgs {
    /// Addresses of the metadata servers, host:port separated by commas; one that lives is enough
    #[arg(
        long,
        env = "WEFT_CLUSTER",
        value_delimiter = ',',
        required = true,
        value_name = "ADDR,.."
    )]
    pub cluster: Vec<String>,
}

/// The status of every server, in the order given, asked at the same time.
pub async fn statuses(addresses: &[String]) -> Answers {
    weft_control::statuses(&transport(), addresses).await
}

/// The leader's status: among `answers`, or found by following them.
pub async fn leader_of(answers: &Answers) -> Result<StatusReply> {
    weft_control::leader_of(&transport(), answers).await
}

/// Asks the cluster's leader.
pub async fn leader_status(cluster: &[String]) -> Result<StatusReply> {
    weft_control::leader_status(&transport(), cluster).await
}
