{{/* The name of all objects, and the beginning of those of which there are several. */}}
{{- define "stanch.fullname" -}}
{{- if .Values.fullnameOverride }}{{ .Values.fullnameOverride }}
{{- else if contains "stanch" .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}
{{- else }}{{ printf "%s-stanch" (.Release.Name | trunc 33 | trimSuffix "-") }}
{{- end }}
{{- end }}

{{- define "stanch.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (include "stanch.fullname" .) }}
{{- end }}

{{- define "stanch.image" -}}
{{- $image := .Values.image -}}
{{ $image.repository }}:{{ $image.tag | default .Chart.AppVersion }}{{ with $image.digest }}@{{ . }}{{ end }}
{{- end }}

{{/* What tells this release's pods from others. */}}
{{- define "stanch.release" -}}
app.kubernetes.io/name: stanch
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{/* What tells the operator's own pods: those of hooks and tests are none. */}}
{{- define "stanch.selector" -}}
{{ include "stanch.release" . }}
app.kubernetes.io/component: operator
{{- end }}

{{- define "stanch.labels" -}}
{{ include "stanch.release" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- with .Values.labels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Rules: what the operator may do in each namespace that it watches. */}}
{{- define "stanch.rights" -}}
{{ .Files.Get "files/rights/namespaced.yaml" | trim }}
{{- if .Values.disaggDeployments.enabled }}
{{ .Files.Get "files/rights/deployments.yaml" | trim }}
{{- end }}
{{- end }}

{{/* Pod security "restricted". The numeric user is the image's. */}}
{{- define "stanch.podSecurity" -}}
runAsNonRoot: true
runAsUser: 65532
runAsGroup: 65532
fsGroup: 65532
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "stanch.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: [ALL]
{{- end }}

{{/* What any pod of ours says about where it runs. */}}
{{- define "stanch.placement" -}}
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* What the schema cannot say: one value that needs another. */}}
{{- define "stanch.check" -}}
{{- with .Values.alerts }}
{{- if and .enabled (not .tokenSecret.name) (not .tlsSecret) }}
{{- fail "alerts.enabled: name alerts.tokenSecret.name or alerts.tlsSecret (with ca.crt), or anybody could open incidents" }}
{{- end }}
{{- end }}
{{- with .Values.webhook }}
{{- if and .certificate (not .tlsSecret) }}
{{- fail "webhook.certificate: name the Secret that cert-manager makes for it, too: webhook.tlsSecret" }}
{{- end }}
{{- end }}
{{- if and (not .Values.serviceAccount.create) (not .Values.serviceAccount.name) }}
{{- fail "serviceAccount.name: name the account that the operator shall use, as serviceAccount.create is false" }}
{{- end }}
{{- end }}
