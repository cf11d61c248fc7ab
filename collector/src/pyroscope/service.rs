//! The calls, as the services of gRPC have them.

use super::Pyroscope;
use super::wire::querier::v1 as wire;
use super::wire::querier::v1::querier_service_server::QuerierService;
use super::wire::settings::v1 as settings;
use super::wire::settings::v1::settings_service_server::SettingsService;
use super::wire::types::v1 as messages;
use crate::access::Caller;
use profile::formats::pprof::messages::Profile as Pprof;
use tonic::{Request, Response, Status};

/// What clients that can quote names of labels add to the types that they accept.
const ALL_NAMES: &str = "allow-utf8-labelnames=true";

#[tonic::async_trait]
impl QuerierService for Pyroscope {
    async fn profile_types(
        &self,
        request: Request<wire::ProfileTypesRequest>,
    ) -> Result<Response<wire::ProfileTypesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let answer = self.types(&caller, request.into_inner());
        answer.await.map(Response::new)
    }

    async fn label_names(
        &self,
        request: Request<messages::LabelNamesRequest>,
    ) -> Result<Response<messages::LabelNamesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let accepts = request.metadata().get_all("accept").into_iter();
        let mut accepts = accepts.filter_map(|text| text.to_str().ok());
        let all = accepts.any(|text| text.contains(ALL_NAMES));
        let answer = self.names(&caller, request.into_inner(), all);
        answer.await.map(Response::new)
    }

    async fn label_values(
        &self,
        request: Request<messages::LabelValuesRequest>,
    ) -> Result<Response<messages::LabelValuesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let answer = self.values(&caller, request.into_inner());
        answer.await.map(Response::new)
    }

    async fn series(
        &self,
        request: Request<wire::SeriesRequest>,
    ) -> Result<Response<wire::SeriesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let answer = self.combinations(&caller, request.into_inner());
        answer.await.map(Response::new)
    }

    async fn select_series(
        &self,
        request: Request<wire::SelectSeriesRequest>,
    ) -> Result<Response<wire::SelectSeriesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let answer = Pyroscope::select_series(self, &caller, request.into_inner());
        answer.await.map(Response::new)
    }

    async fn select_merge_stacktraces(
        &self,
        request: Request<wire::SelectMergeStacktracesRequest>,
    ) -> Result<Response<wire::SelectMergeStacktracesResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        self.stacks(&caller, request.into_inner()).await
    }

    async fn select_merge_span_profile(
        &self,
        request: Request<wire::SelectMergeSpanProfileRequest>,
    ) -> Result<Response<wire::SelectMergeSpanProfileResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let asked = request.into_inner();
        let answer = self.stacks(
            &caller,
            wire::SelectMergeStacktracesRequest {
                profile_type_id: asked.profile_type_id,
                label_selector: asked.label_selector,
                start: asked.start,
                end: asked.end,
                max_nodes: asked.max_nodes,
                span_selector: asked.span_selector,
                ..wire::SelectMergeStacktracesRequest::default()
            },
        );
        Ok(answer
            .await?
            .map(|answer| wire::SelectMergeSpanProfileResponse {
                flamegraph: answer.flamegraph,
            }))
    }

    async fn select_merge_profile(
        &self,
        request: Request<wire::SelectMergeProfileRequest>,
    ) -> Result<Response<Pprof>, Status> {
        let caller = Caller::of(request.extensions())?;
        self.pprof(&caller, request.into_inner()).await
    }

    async fn select_heatmap(
        &self,
        request: Request<wire::SelectHeatmapRequest>,
    ) -> Result<Response<wire::SelectHeatmapResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        let answer = self.heatmap(&caller, request.into_inner());
        answer.await.map(Response::new)
    }

    async fn diff(
        &self,
        request: Request<wire::DiffRequest>,
    ) -> Result<Response<wire::DiffResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        self.compare(&caller, request.into_inner()).await
    }

    async fn get_profile_stats(
        &self,
        request: Request<messages::GetProfileStatsRequest>,
    ) -> Result<Response<messages::GetProfileStatsResponse>, Status> {
        let caller = Caller::of(request.extensions())?;
        self.stats(&caller).await.map(Response::new)
    }
}

#[tonic::async_trait]
impl SettingsService for Pyroscope {
    async fn get(
        &self,
        request: Request<settings::GetSettingsRequest>,
    ) -> Result<Response<settings::GetSettingsResponse>, Status> {
        Caller::of(request.extensions())?;
        Ok(Response::new(settings::GetSettingsResponse::default()))
    }
}
