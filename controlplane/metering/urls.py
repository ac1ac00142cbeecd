from django.urls import path

from controlplane.metering import api

app_name = "metering"

urlpatterns = [
    path("usage", api.UsageView.as_view(), name="usage"),
    path("usage.csv", api.UsageCsv.as_view(), name="usage-csv"),
    path("prices", api.PricesView.as_view(), name="prices"),
    path("prices/holidays", api.HolidaysView.as_view(), name="holidays"),
]
