//! Waiting until a capture is to end with what there is.

use tokio::sync::watch;

/// Done when it is to end with what there is.
pub async fn cancel_asked(cancel: &mut watch::Receiver<bool>) {
    if cancel.wait_for(|&stop| stop).await.is_err() {
        // The list forgot it, which it does at its end.
        std::future::pending::<()>().await;
    }
}
