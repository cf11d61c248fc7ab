{{- define "fleetprof.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{- define "fleetprof.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- $name := default .Chart.Name .Values.nameOverride }}
{{- if contains $name .Release.Name }}
{{- .Release.Name | trunc 52 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name $name | trunc 52 | trimSuffix "-" }}
{{- end }}
{{- end }}
{{- end }}

{{- define "fleetprof.selector" -}}
app.kubernetes.io/name: {{ include "fleetprof.name" .context }}
app.kubernetes.io/instance: {{ .context.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "fleetprof.labels" -}}
{{ include "fleetprof.selector" . }}
app.kubernetes.io/version: {{ .context.Chart.AppVersion | quote }}
app.kubernetes.io/part-of: fleetprof
app.kubernetes.io/managed-by: {{ .context.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .context.Chart.Name .context.Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "fleetprof.image" -}}
{{- if .image.digest -}}
{{ .image.repository }}@{{ .image.digest }}
{{- else -}}
{{ .image.repository }}:{{ .image.tag | default .context.Chart.AppVersion }}
{{- end }}
{{- end }}

{{/* The account of a component: `context`, `component`, `values`. */}}
{{- define "fleetprof.serviceAccount" -}}
{{- .values.serviceAccount.name | default (printf "%s-%s" (include "fleetprof.fullname" .context) .component) }}
{{- end }}

{{/* The Secret with the invitation; nothing where agents have no collector. */}}
{{- define "fleetprof.joinSecret" -}}
{{- if .Values.agent.join.existingSecret }}
{{- .Values.agent.join.existingSecret }}
{{- else if .Values.collector.enabled }}
{{- include "fleetprof.fullname" . }}-join
{{- end }}
{{- end }}

{{/* Who a node is. */}}
{{- define "fleetprof.node" -}}
{{- if .Values.clusterName }}{{ .Values.clusterName }}/{{ end }}$(NODE_NAME)
{{- end }}

{{- define "fleetprof.advertise" -}}
{{- .Values.collector.advertise | default (printf "%s-collector.%s.svc" (include "fleetprof.fullname" .) .Release.Namespace) }}
{{- end }}

{{/* collector.yaml: what values say, and `collector.config` over it. */}}
{{- define "fleetprof.collectorConfig" -}}
{{- $values := .Values.collector }}
{{- $web := dict }}
{{- with $values.externalUrl }}{{- $_ := set $web "external_url" . }}{{- end }}
{{- if $values.page.existingSecret }}
{{- $_ := set $web "tls" (dict "cert_file" "/etc/fleetprof-page/tls.crt" "key_file" "/etc/fleetprof-page/tls.key") }}
{{- end }}
{{- $config := dict "listen" (dict "tls" "0.0.0.0:7601" "https" "0.0.0.0:7611" "advertise" (include "fleetprof.advertise" .)) }}
{{- if $web }}{{- $_ := set $config "web" $web }}{{- end }}
{{- with $values.oidc }}
{{- if .issuer }}
{{- $oidc := dict "issuer" .issuer "client_id" .clientId "client_secret_file" (printf "/etc/fleetprof-oidc/%s" .key) "rules" .rules }}
{{- range $key, $value := dict "provider_name" .providerName "groups_claim" .groupsClaim "name_claim" .nameClaim "scopes" .scopes }}
{{- if $value }}{{- $_ := set $oidc $key $value }}{{- end }}
{{- end }}
{{- $_ := set $config "auth" (dict "oidc" $oidc) }}
{{- end }}
{{- end }}
{{- with $values.clickhouse }}
{{- if .url }}
{{- $clickhouse := dict "urls" (list .url) }}
{{- with .database }}{{- $_ := set $clickhouse "database" . }}{{- end }}
{{- with .user }}{{- $_ := set $clickhouse "user" . }}{{- end }}
{{- if .existingSecret }}{{- $_ := set $clickhouse "password_file" (printf "/etc/fleetprof-clickhouse/%s" .key) }}{{- end }}
{{- $_ := set $config "store" "clickhouse" }}
{{- $_ := set $config "clickhouse" $clickhouse }}
{{- end }}
{{- end }}
{{- toYaml (mergeOverwrite $config (deepCopy $values.config)) }}
{{- end }}

{{/* Secrets of the collector's pod, by the names of their volumes. */}}
{{- define "fleetprof.collectorSecrets" -}}
{{- $values := .Values.collector }}
{{- with $values.page.existingSecret }}
page: {{ . }}
{{- end }}
{{- if $values.oidc.issuer }}
oidc: {{ $values.oidc.existingSecret }}
{{- end }}
{{- if and $values.clickhouse.url $values.clickhouse.existingSecret }}
clickhouse: {{ $values.clickhouse.existingSecret }}
{{- end }}
{{- end }}

{{/* What cannot work is said before anything is installed. */}}
{{- define "fleetprof.sound" -}}
{{- $values := .Values.collector }}
{{- if not (or .Values.agent.enabled $values.enabled) }}
{{- fail "agent.enabled and collector.enabled: one of them at least" }}
{{- end }}
{{- if $values.enabled }}
{{- if $values.oidc.issuer }}
{{- if not $values.externalUrl }}
{{- fail "collector.oidc.issuer: needs collector.externalUrl, which is where the provider sends browsers back to" }}
{{- end }}
{{- if not (and $values.oidc.clientId $values.oidc.existingSecret $values.oidc.rules) }}
{{- fail "collector.oidc.issuer: set clientId, existingSecret and rules with it" }}
{{- end }}
{{- end }}
{{- if and $values.ingress.enabled (not $values.externalUrl) }}
{{- fail "collector.ingress.enabled: needs collector.externalUrl, whose name it takes" }}
{{- end }}
{{- if and $values.serviceMonitor.enabled (not $values.serviceMonitor.existingSecret) }}
{{- fail "collector.serviceMonitor.enabled: needs existingSecret, with a token of `agent-ctl users add prometheus --role metrics`" }}
{{- end }}
{{- if and $values.serviceMonitor.enabled (not $values.serviceMonitor.tlsConfig) }}
{{- fail "collector.serviceMonitor.tlsConfig: empty, and so nothing would be scraped: {serverName: …} with the name in page.existingSecret's certificate, or {insecureSkipVerify: true}" }}
{{- end }}
{{- end }}
{{- end }}
