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

{{/* The collector's manifests, but only to be read: its pods do not start yet. */}}
{{- define "fleetprof.collector" -}}
{{- if .Values.collector.enabled }}
{{- if not .Values.preview }}
{{- fail "collector.enabled: the collector of this version listens on loopback only, so no agent of another pod reaches it; preview=true renders its manifests all the same" }}
{{- end }}yes
{{- end }}
{{- end }}
