{{/* The operator's environment (operator/stanch/settings.py). */}}
{{- define "stanch.settings" -}}
- name: STANCH_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: STANCH_IDENTITY
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
{{- with .Values.watchNamespaces }}
- name: STANCH_WATCH_NAMESPACES
  value: {{ join "," . }}
{{- end }}
- name: STANCH_HTTP_PORT
  value: {{ .Values.metrics.port | quote }}
- name: STANCH_KIT_IMAGE
  value: {{ .Values.kit.image | default (include "stanch.image" .) }}
- name: STANCH_KIT_PULL_POLICY
  value: {{ .Values.kit.pullPolicy }}
- name: STANCH_KIT_IMAGE_VOLUME
  value: {{ .Values.kit.imageVolume | quote }}
{{- with .Values.webhook }}
{{- if .enabled }}
- name: STANCH_WEBHOOK_PORT
  value: {{ .port | quote }}
- name: STANCH_WEBHOOK_CONFIG
  value: {{ include "stanch.fullname" $ }}
- name: STANCH_WEBHOOK_SERVICE
  value: {{ include "stanch.fullname" $ }}-webhook
{{- if .tlsSecret }}
- name: STANCH_WEBHOOK_CERT_DIR
  value: /etc/stanch/webhook-tls
{{- end }}
{{- end }}
{{- end }}
{{- with .Values.alerts }}
{{- if .enabled }}
- name: STANCH_ALERTS_PORT
  value: {{ .port | quote }}
{{- if .tokenSecret.name }}
- name: STANCH_ALERTS_TOKEN_FILE
  value: /etc/stanch/alerts-token/{{ .tokenSecret.key }}
{{- end }}
{{- if .tlsSecret }}
- name: STANCH_ALERTS_TLS_DIR
  value: /etc/stanch/alerts-tls
{{- end }}
{{- if .table }}
- name: STANCH_ALERTS_TABLE
  value: /etc/stanch/tables/alerts.yaml
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.prometheus.table }}
- name: STANCH_PROMETHEUS_TABLE
  value: /etc/stanch/tables/prometheus.yaml
{{- end }}
{{- if .Values.apiKeys.secret }}
- name: STANCH_API_KEYS_DIR
  value: /etc/stanch/api-keys
{{- end }}
{{- end }}

{{/* Whether there is a ConfigMap with tables: "true" or nothing. */}}
{{- define "stanch.tables" -}}
{{- if or .Values.prometheus.table (and .Values.alerts.enabled .Values.alerts.table) }}true{{ end }}
{{- end }}

{{/* A list of volumes, each mounted at /etc/stanch/NAME. */}}
{{- define "stanch.mounts" -}}
{{- if and .Values.webhook.enabled .Values.webhook.tlsSecret }}
- name: webhook-tls
  secret:
    secretName: {{ .Values.webhook.tlsSecret }}
{{- end }}
{{- with .Values.alerts }}
{{- if and .enabled .tokenSecret.name }}
- name: alerts-token
  secret:
    secretName: {{ .tokenSecret.name }}
    items:
      - key: {{ .tokenSecret.key }}
        path: {{ .tokenSecret.key }}
{{- end }}
{{- if and .enabled .tlsSecret }}
- name: alerts-tls
  secret:
    secretName: {{ .tlsSecret }}
{{- end }}
{{- end }}
{{- if include "stanch.tables" . }}
- name: tables
  configMap:
    name: {{ include "stanch.fullname" . }}-tables
{{- end }}
{{- if .Values.prometheus.secret }}
- name: prometheus
  secret:
    secretName: {{ .Values.prometheus.secret }}
{{- end }}
{{- if .Values.apiKeys.secret }}
- name: api-keys
  secret:
    secretName: {{ .Values.apiKeys.secret }}
{{- end }}
{{- end }}
