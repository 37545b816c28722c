//! Why these workers? What is written down of it, and what the client is told.

use baton_core::place::receipt::Receipt;
use bytes::Bytes;
use http::HeaderMap;

use super::Drive;
use crate::explain;
use crate::recent::SCORES_MAX;

impl Drive {
    /// One that is kept if somebody will read it.
    pub(super) fn receipt(&self) -> Receipt {
        if self.explains || self.gateway.debug_requests > 0 { Receipt::on() } else { Receipt::off() }
    }

    /// Keeps what was written down of a placement.
    pub(super) fn wrote(&mut self, mut receipt: Receipt) {
        if receipt.is_on() {
            receipt.shorten(SCORES_MAX);
            self.record.receipts.push(receipt);
        }
    }

    /// Tells the client in a header why its workers were chosen, if it asked.
    pub(crate) fn explain(&self, headers: &mut HeaderMap) {
        if self.explains
            && let Some(told) = explain::header(&self.record)
        {
            headers.insert(explain::EXPLAIN, told);
        }
    }

    /// The same as a comment of a stream.
    pub(crate) fn comment(&self) -> Option<Bytes> {
        if self.explains { explain::comment(&self.record) } else { None }
    }
}
